# Sharded training (FSDP): parameters, gradients and the state of the optimizer are split over the processes. Each block
# of the backbone is an FSDP unit; the rest of the model is one more unit. Add this file to the bases of a config and
# start the training with tools/dist_train.sh.
runner_type = 'FlexibleRunner'
strategy = dict(
    type='mmguard.runs.sharding.ShardedStrategy',
    # use_orig_params: a unit can contain frozen parameters and parameters without weight decay
    model_wrapper=dict(auto_wrap_policy='mmguard.runs.sharding.wrap_blocks', use_orig_params=True),
)
