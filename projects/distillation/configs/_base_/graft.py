# Teacher and backbone are to be added. In the first 10 epochs, blocks learn by themselves; then the whole backbone
# learns. Checkpoints are written at the end of the first part, for tools/analyze.py --what grafting, and later.
_base_ = ['./images.py', './recipe.py', './runtime.py']
block_epochs, epochs = 10, 30
model = dict(
    type='mmattn_distillation.BlockDistiller',
    distance='l1',
    data_preprocessor=dict(type='mmattn_distillation.ViewPreprocessor'),
)

# Both see the same image: its colours are not changed.
load, crop, flip, _, pack = _base_.train_pipeline
train_pipeline = [load, crop, flip, pack]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_evaluator = [dict(type='mmattn_distillation.TeacherSimilarity'), dict(type='mmattn_distillation.BlockErrors')]
test_evaluator = val_evaluator

# Rates and weight decay as in Grafting, https://arxiv.org/abs/2506.05340 and its code: AdamW, 5e-4 for blocks, 1e-4 for
# the whole, no weight decay. There, 8000 images are seen 200 times, then a tenth of ImageNet 100 times.
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', lr=5e-4, weight_decay=0.0), paramwise_cfg=dict(_delete_=True)
)
warm_up = dict(type='LinearLR', start_factor=1e-3, convert_to_iter_based=True)
param_scheduler = [
    dict(  # It comes first: where it starts again, it sets the rate that the warm-up lowers.
        type='CosineRestartLR',
        periods=[block_epochs, epochs - block_epochs],
        restart_weights=[1.0, 0.2],
        eta_min=1e-6,
        begin=0,
        end=epochs,
        convert_to_iter_based=True,
    ),
    dict(warm_up, begin=0, end=1),
    dict(warm_up, begin=block_epochs, end=block_epochs + 1),
]
train_cfg = dict(max_epochs=epochs)
auto_scale_lr = dict(base_batch_size=128)
find_unused_parameters = True  # At first, only new token mixers have gradients.
default_hooks = dict(checkpoint=dict(interval=block_epochs, max_keep_ckpts=-1))
custom_hooks = [*_base_.custom_hooks, dict(type='mmattn_distillation.WholeModelHook', begin=block_epochs)]
