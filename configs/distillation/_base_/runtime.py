# The runtime of classifiers, with hooks that write the student alone and draw its features.
_base_ = '../../_base_/cls_runtime.py'
custom_imports = dict(imports=['mmattn', 'mmattn.engine', 'mmattn.distillation'])
default_hooks = dict(visualization=None)  # It draws classes.
custom_hooks = [
    dict(type='SyncBuffersHook'),  # batch norms of students
    dict(type='BackboneCheckpointHook', interval=1, max_keep_ckpts=3),
    dict(type='FeatureImagesHook', images=4),
]
vis_backends = [dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')]
visualizer = dict(vis_backends=vis_backends)
