# MSF-ViT-S for heads that want a pyramid, warm from timm's plain ViT: no ImageNet weights of MSF were published.
backbone = dict(
    type='MSFViT',
    arch='small',
    out_indices=(2, 5, 8, 11),
    final_norm=True,
    drop_path_rate=0.1,  # MMSegmentation's for ViT-S under UperNet
    init_cfg=dict(type='Pretrained', checkpoint='checkpoints/vit_small_patch16_224.pth', warm_start=True),
)
# Its four maps of stride 16 to strides 4, 8, 16 and 32.
pyramid = dict(type='mmseg.Feature2Pyramid', embed_dim=384, norm_cfg=dict(type='SyncBN', requires_grad=True))
in_channels = [384, 384, 384, 384]
