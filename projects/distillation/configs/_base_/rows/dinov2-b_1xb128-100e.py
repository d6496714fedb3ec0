_base_ = ['../dinov2-b.py', '../1xb128-100e.py']
