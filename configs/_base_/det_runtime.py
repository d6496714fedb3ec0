# MMDetection's runtime.
_base_ = 'mmdet::_base_/default_runtime.py'
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))
