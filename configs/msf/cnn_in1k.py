# The CNNs of table 6, for 100 and for 300 epochs, from MMPretrain. The paper trains all networks with one protocol; how
# it changes the batch and the mixing with the size of a model is not public. MMATTN_ROW=resnet-50_300e chooses a row.
# ResNeXt-101 has the groups of 8 channels that its printed parameters have.
_base_ = './_base_/in1k.py'
rows = {
    # 100 epochs
    'efficientnet-b0': dict(type='EfficientNet', arch='b0', drop_path_rate=0.2),
    'resnet-50': dict(type='ResNet', depth=50),
    'resnet-101': dict(type='ResNet', depth=101),
    'resnext-50': dict(type='ResNeXt', depth=50, groups=32, width_per_group=4),
    'resnext-101': dict(type='ResNeXt', depth=101, groups=32, width_per_group=8),
}
rows.update({f'{name}_300e': settings for name, settings in rows.items()})
row = '{{$MMATTN_ROW:resnet-50}}'
model = dict(backbone=rows[row], head=dict(in_channels=1280 if rows[row]['type'] == 'EfficientNet' else 2048))
param_scheduler, train_cfg = _base_.schedules[300 if row.endswith('_300e') else 100]
custom_hooks = [dict(type='SyncBuffersHook')]
