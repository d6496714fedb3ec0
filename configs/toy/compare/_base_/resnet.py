_base_ = './gsa-resnet.py'
backbone = dict(gsa_stages=())
