# Swin-T -> MSF-Swin-T, which starts close to it.
_base_ = './elsa-swin-t.py'
model = dict(backbone=dict(_delete_=True, type='mmattn.MSFSwin', arch='tiny', proj_bias=True, drop_path_rate=0.0))
