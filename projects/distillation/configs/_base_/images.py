# A folder of images without labels, however nested. The environment variable MMATTN_IMAGES names another folder. A part
# of the images is held out: the validation compares student and teacher on it.
data_root = '{{$MMATTN_IMAGES:data/images}}'
held_out = 0.02

# Crops, flips and colours are those of UNIC: https://github.com/naver/unic. Only the student sees the colours.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='mmattn_distillation.ViewCrop', scale=224, backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(
        type='mmattn_distillation.StudentColors',
        transforms=[
            dict(type='NumpyToPIL', to_rgb=True),
            dict(
                type='RandomApply',
                prob=0.8,
                transforms=[
                    dict(type='torchvision/ColorJitter', brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
                ],
            ),
            dict(type='torchvision/RandomGrayscale', p=0.2),
            dict(
                type='RandomApply',
                prob=0.2,
                transforms=[dict(type='torchvision/GaussianBlur', kernel_size=9, sigma=(0.1, 5.0))],
            ),
            dict(type='torchvision/RandomSolarize', threshold=128, p=0.2),
            dict(type='PILToNumpy', to_bgr=True),
        ],
    ),
    dict(type='mmattn_distillation.PackViews'),
]
# 448: the pictures of the features have 28 x 28 or 32 x 32 positions.
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=448, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=448),
    dict(type='mmattn_distillation.PackViews'),
]
# A batch of any size has about the pixels of 128 images of 224 x 224. A pixel of the largest size costs a teacher
# twice as much, because of attention, so that this size takes an eighth to a sixth of the compute.
sizes = [
    dict(size=(224, 224), share=0.6),
    dict(size=(448, 448), share=0.3, crop_ratio_range=(0.2, 1.0)),
    dict(size=(800, 1344), share=0.1, crop_ratio_range=(0.4, 1.0)),
]
train_dataloader = dict(
    batch_size=128,  # of 224 x 224, on each GPU
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='mmattn_distillation.MultiScaleBatchSampler', sizes=sizes),
    dataset=dict(
        type='mmattn_distillation.UnlabelledImages',
        data_root=data_root,
        held_out=held_out,
        split='train',
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=32,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='mmattn_distillation.UnlabelledImages',
        data_root=data_root,
        held_out=held_out,
        split='held_out',
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='mmattn_distillation.TeacherSimilarity')
test_evaluator = val_evaluator
