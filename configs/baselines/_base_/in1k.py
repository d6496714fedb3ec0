# ImageNet classifiers that ELSA (table 6) and Shunted (table 2) compare with. All have DeiT's recipe, which is
# Shunted's, with a drop path of 0.1 in transformers. Their own papers have other recipes. The sizes of images are those
# that the tables print, but for CrossViT, whose is 240.
_base_ = '../../shunted/_base_/in1k.py'
loss = dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')
undecayed = dict(decay_mult=0.0)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(pos_embed=undecayed, cls_token=undecayed)))
# of training and of testing, by the size of images
pipelines = {
    size: (
        [_base_.train_pipeline[0], dict(_base_.train_pipeline[1], scale=size), *_base_.train_pipeline[2:]],
        [
            _base_.test_pipeline[0],
            dict(_base_.test_pipeline[1], scale=size * 8 // 7),
            dict(_base_.test_pipeline[2], crop_size=size),
            *_base_.test_pipeline[3:],
        ],
    )
    for size in (240, 380, 384, 448)
}
