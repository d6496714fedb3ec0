# The photos of Tiny ImageNet without labels, in crops of 48 pixels as those of classifiers. MMATTN_IMAGES names them.
view = dict(type='mmattn_distillation.ViewCrop', scale=48, crop_ratio_range=(0.35, 1.0))
photos = dict(data_root='{{$MMATTN_IMAGES:data/real/IMagenet/tiny-imagenet-200/train}}', held_out=0.01)
loader = dict(num_workers=0, persistent_workers=False)
train_loader = dict(loader, batch_sampler=dict(sizes=[dict(size=(48, 48), share=1.0)]))
val_loader = dict(loader, batch_size=100)
