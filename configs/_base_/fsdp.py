# Sharded training: parameters, gradients and the state of the optimizer are split over the processes. Each block of the
# backbone is a unit, the rest of the model is another one. Add this file to the bases of any config and start it with
# tools/dist_train.sh.
runner_type = 'FlexibleRunner'
strategy = dict(
    type='ShardedStrategy',
    # use_orig_params: a unit may hold frozen parameters, and parameters without weight decay
    model_wrapper=dict(auto_wrap_policy='wrap_blocks', use_orig_params=True),
)
