_base_ = ['../dinov3-b.py', '../8xb128-200e.py']
