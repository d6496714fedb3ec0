_base_ = './msf-vit.py'
backbone = dict(form='plain')
