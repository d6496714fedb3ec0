# Multi-scale testing with flip, for boxes and masks. The type is a full path, so that no config must import its module.
tta_model = dict(
    type='mmattn.detection.MaskTTAModel', tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100)
)
# Short sides 600, 800 and 1000 with COCO's limit of 1333 for long sides. At another test size, both change.
tta_views = dict(factors=(0.75, 1.0, 1.25), long_side=1333)
