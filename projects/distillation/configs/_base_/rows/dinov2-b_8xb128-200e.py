_base_ = ['../dinov2-b.py', '../8xb128-200e.py']
