# RetinaNets on the simple feature pyramid of the frozen ViT-S/14 on BCCD, in as many steps as
# projects/lab/configs/real/bccd.py. A row is the width of the images, 336 x 252, about that of the small models, or
# 504 x 378, and the block whose map the pyramid takes. There is one view of each image, so that its maps are computed
# once.
_base_ = ['../bccd.py', './_base_/focus.py']
input_size = (336, 252)
load, annotations = dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)
pack = dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
rows = {
    **{
        f'{width}{"" if block == 12 else f"-block-{block}"}': {
            'model.backbone.backbone.out_indices': [block - 1],
            # anchors of 16 to 200 pixels in images of 320 x 240, as those of the small models
            'model.bbox_head.anchor_generator.octave_base_scale': width / 140,
            'train_dataloader.dataset.pipeline': [load, annotations, resize, dict(type='PackDetInputs')],
            'val_dataloader.dataset.pipeline': [load, resize, annotations, pack],
            'test_dataloader.dataset.pipeline': [load, resize, annotations, pack],
        }
        for width, height, block in ((336, 252, 12), (336, 252, 9), (336, 252, 6), (504, 378, 12))
        for resize in [dict(type='Resize', scale=(width, height))]
    },
    '_delete_': True,  # those of the base
}
model = dict(
    data_preprocessor=dict(pad_size_divisor=14),
    backbone=_base_.frozen,
    neck=dict(
        type='mmattn.detection.SimpleFeaturePyramid',
        in_channels=384,
        out_channels=64,
        scales=(2, 1, 0.5),
        num_outs=4,
        _delete_=True,
    ),
    bbox_head=dict(anchor_generator=dict(strides=[7, 14, 28, 56])),
)
train_cfg = dict(val_interval=500)
