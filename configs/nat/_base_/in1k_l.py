# Large models, fine-tuned from ImageNet-22K. The learning rate falls linearly, as the released settings say; the
# released script lacks this schedule. The recipe for ImageNet-22K was not published.
_base_ = './in1k.py'
model = dict(train_cfg=dict(augments=dict(mixing=[])))
train_dataloader = dict(batch_size=64)  # on each of 8 GPUs: 512
auto_scale_lr = dict(base_batch_size=512)
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(lr=5e-5, weight_decay=1e-4))
param_scheduler = dict(
    _delete_=True, type='LinearLR', start_factor=1.0, end_factor=0.0, end=30, convert_to_iter_based=True
)
train_cfg = dict(max_epochs=30)
