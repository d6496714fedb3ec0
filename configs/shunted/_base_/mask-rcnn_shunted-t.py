_base_ = './mask-rcnn_shunted-s.py'
model = dict(
    backbone=dict(
        arch='tiny',
        drop_path_rate=0.1,  # like Small, as pre-trained
        init_cfg=dict(checkpoint='checkpoints/ckpt_T.pth'),
    )
)
