# ADE20K for Mask2Former: training images are resized to a random short side of 256 to 1024.
_base_ = './ade20k.py'

resize = dict(
    type='RandomChoiceResize',
    scales=[side * 512 // 10 for side in range(5, 21)],
    resize_type='ResizeShortestEdge',
    max_size=2048,
)
train_pipeline = [resize if step.type == 'RandomResize' else step for step in _base_.train_pipeline]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
