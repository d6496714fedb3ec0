# What the compared classifiers share. A row is a backbone.
_base_ = ['./_base_/models.py', './_base_/tasks/classifier.py']
rows = {
    name: dict(
        model=dict(
            backbone=dict(backbone, _delete_=True, out_indices=[3]),
            # The same head for all: a 1 x 1 convolution to 128 channels. It also takes a list of maps, as PVTv2
            # returns it.
            neck=[
                dict(
                    type='mmdet.ChannelMapper',
                    in_channels=_base_.channels[name][-1:],
                    out_channels=128,
                    kernel_size=1,
                    act_cfg=None,
                ),
                dict(type='GlobalAveragePooling'),
            ],
        )
    )
    for name, backbone in _base_.models.items()
}
model = dict(rows['swin']['model'], backbone=dict(_base_.models['swin'], out_indices=[3]), head=dict(in_channels=128))
