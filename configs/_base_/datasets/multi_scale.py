# DETR's multi-scale training, after loading: resize to a random short side, or resize, crop and resize.
short_sides = [(side, 1333) for side in range(480, 801, 32)]
multi_scale = [
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='RandomChoice',
        transforms=[
            [dict(type='RandomChoiceResize', scales=short_sides, keep_ratio=True)],
            [
                dict(type='RandomChoiceResize', scales=[(400, 1333), (500, 1333), (600, 1333)], keep_ratio=True),
                dict(type='RandomCrop', crop_type='absolute_range', crop_size=(384, 600), allow_negative_crop=True),
                dict(type='RandomChoiceResize', scales=short_sides, keep_ratio=True),
            ],
        ],
    ),
    dict(type='PackDetInputs'),
]
