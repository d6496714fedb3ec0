_base_ = './dinat_s.py'
backbone = dict(type='mmattn.SwinFrame', arch='small', attention=_base_.attentions.in1k)
in_channels = [96, 192, 384, 768]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://shi-labs.com/projects/dinat/checkpoints/imagenet1k/dinat_s_small_in1k_224.pth',
    ),
)
