_base_ = './msf-vit.py'
backbone = dict(attention='plain')
