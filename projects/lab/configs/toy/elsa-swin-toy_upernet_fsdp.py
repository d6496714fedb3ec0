_base_ = ['./elsa-swin-toy_upernet.py', '../../../../configs/_base_/fsdp.py']
