# DiNAT-L with neighbourhoods of 11 x 11. The authors resized the tables of positions in these weights.
_base_ = './dinat-l.py'
dilations = dict(mask2former=((1, 14), (1, 4, 1, 7), (*(1, 2, 1, 3) * 4, 1, 3), 1))
backbone = dict(kernel_size=11)
pretrained = dict(
    backbone,
    init_cfg=dict(
        checkpoint='https://shi-labs.com/projects/dinat/checkpoints/imagenet22k/dinat_large_in22k_224_11x11interp.pth'
    ),
)
