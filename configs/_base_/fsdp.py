# Parameters, gradients and the optimiser's state sharded over the processes: each block of the backbone is a unit, the
# rest of the model another. Added to the bases of any config here and started by tools/dist_train.sh.
runner_type = 'FlexibleRunner'
strategy = dict(
    type='FSDPStrategy',
    # a unit holds frozen parameters, and some without weight decay
    model_wrapper=dict(auto_wrap_policy='wrap_blocks', use_orig_params=True),
    state_dict_cfg='full',
)  # checkpoints like anybody's, written by the first process
