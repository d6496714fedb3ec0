_base_ = './dinat_s.py'
backbone = dict(type='mmattn.SwinFrame', arch='base', attention=_base_.attentions.in1k)
in_channels = [128, 256, 512, 1024]
pretrained = dict(
    backbone,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://shi-labs.com/projects/dinat/checkpoints/imagenet1k/dinat_s_base_in1k_224.pth',
    ),
)
