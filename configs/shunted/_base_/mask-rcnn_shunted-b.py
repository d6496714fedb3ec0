_base_ = './mask-rcnn_shunted-s.py'
model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.3,  # like Small, as pre-trained; MMDetection's Swin-B has 0.3 too
        init_cfg=dict(checkpoint='checkpoints/ckpt_B.pth'),
    )
)
