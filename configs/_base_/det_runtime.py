# MMDetection's runtime. It imports mmattn and its modules for detectors, and writes checkpoints with mmattn's hook.
_base_ = 'mmdet::_base_/default_runtime.py'
custom_imports = dict(imports=['mmattn', 'mmattn.engine', 'mmattn.detection'])
default_hooks = dict(checkpoint=dict(type='AtomicCheckpointHook', max_keep_ckpts=3))
