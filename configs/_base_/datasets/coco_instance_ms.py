# COCO 2017 with masks, multi-scale training.
_base_ = ['./coco_instance.py', './multi_scale.py']

# The first two steps load the image and its annotations.
train_pipeline = _base_.train_pipeline[:2] + _base_.multi_scale
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
