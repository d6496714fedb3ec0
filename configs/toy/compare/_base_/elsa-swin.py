_base_ = './swin.py'
backbone = dict(elsa_stages=(0, 1, 2))
