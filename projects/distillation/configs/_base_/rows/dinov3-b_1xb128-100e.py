_base_ = ['../dinov3-b.py', '../1xb128-100e.py']
