# Multi-scale testing with flip, for boxes and masks. The type is a full path, so that no config must import its module.
tta_model = dict(
    type='mmattn.detection.MaskTTAModel', tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100)
)
tta_keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'flip', 'flip_direction')
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [dict(type='Resize', scale=(1333, side), keep_ratio=True) for side in (600, 800, 1000)],
            [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)],
            [dict(type='LoadAnnotations', with_bbox=True)],
            [dict(type='PackDetInputs', meta_keys=tta_keys)],
        ],
    ),
]
