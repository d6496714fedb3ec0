# MMDetection's runtime. It imports mmattn.
_base_ = 'mmdet::_base_/default_runtime.py'
custom_imports = dict(imports=['mmattn'])
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))
