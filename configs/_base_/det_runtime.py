# MMDetection's runtime. It imports mmattn, and writes checkpoints with mmattn's hook.
_base_ = 'mmdet::_base_/default_runtime.py'
custom_imports = dict(imports=['mmattn', 'mmattn.runs'])
default_hooks = dict(checkpoint=dict(type='AtomicCheckpointHook', max_keep_ckpts=3))
