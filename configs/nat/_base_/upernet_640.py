# The names and dilations of the released configs are for 640 x 640, but their crops are 512 x 512. Here crops and test
# images are 640 x 640.
_base_ = './upernet.py'
model = dict(data_preprocessor=dict(size=(640, 640)))

sizes = dict(
    RandomResize=dict(scale=(2560, 640)), Resize=dict(scale=(2560, 640)), RandomCrop=dict(crop_size=(640, 640))
)
train_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.train_pipeline]
test_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.test_pipeline]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
