# What the compared segmentors share. A row is a backbone.
_base_ = ['./_base_/models.py', './_base_/tasks/segmentor.py']
rows = {
    name: dict(
        model=dict(
            backbone=dict(backbone, _delete_=True),
            neck=[*_base_.pyramids[name], dict(_base_.model.neck, in_channels=_base_.channels[name])],
        )
    )
    for name, backbone in _base_.models.items()
}
model = dict(rows['swin']['model'], backbone=_base_.models['swin'])
