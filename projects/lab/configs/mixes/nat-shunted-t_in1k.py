# NAT's frame, with neighbourhood attention and a ghost head in the first two stages, then neighbourhood, dilated
# neighbourhood and shunted attention in turn, and attention to the whole map in the last stage. The cost is that of
# DiNAT-T. It was never trained on ImageNet: see README.md. The recipe is NAT's.
_base_ = '../../../../configs/nat/_base_/in1k.py'
ghost = dict(type='NeighbourhoodAttention', ghost_size=3)
dilated = dict(type='NeighbourhoodAttention', dilation=2)
shunted = dict(type='ShuntedAttention', aggregation='linear')
plain = dict(type='MeanShiftAttention', form='plain', proj_bias=True)
model = dict(
    backbone=dict(
        type='mmattn.NAT', arch='tiny', attention=[ghost, ghost, [ghost, dilated, shunted], plain], drop_path_rate=0.2
    ),
    head=dict(in_channels=512),
)
