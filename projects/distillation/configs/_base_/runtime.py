# The runtime of classifiers, but for the hook that draws classes. Others write the student alone and draw its features.
_base_ = '../../../../configs/_base_/cls_runtime.py'
default_hooks = dict(
    _delete_=True,
    logger=dict(type='LoggerHook', interval=100),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=3),
)
custom_hooks = [
    dict(type='SyncBuffersHook'),  # batch norms of students
    dict(type='mmattn_distillation.BackboneCheckpointHook', interval=1, max_keep_ckpts=3),
    dict(type='mmattn_distillation.FeatureImagesHook', images=4),
]
vis_backends = [dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')]
visualizer = dict(vis_backends=vis_backends)
