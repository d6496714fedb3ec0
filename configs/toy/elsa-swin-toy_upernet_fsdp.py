_base_ = ['./elsa-swin-toy_upernet.py', '../_base_/fsdp.py']
