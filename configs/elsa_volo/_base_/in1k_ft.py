# Fine-tuning at a larger size from the weights of 224 x 224, as by VOLO's README: the true label counts, too. Its batch
# of D3 stands here. The size and what in1k.py leaves open are to be added, and load_from.
_base_ = './in1k.py'
model = dict(ground_truth=True)
train_dataloader = dict(batch_size=30)  # on each of 8 GPUs: 240
val_dataloader = dict(batch_size=30)
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=8e-6, weight_decay=1e-8))
param_scheduler = dict(t_initial=30, lr_min=4e-6, warmup_t=5)
train_cfg = dict(max_epochs=40)
auto_scale_lr = dict(base_batch_size=240)
