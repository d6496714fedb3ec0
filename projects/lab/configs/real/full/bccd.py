# The detectors of ../bccd.py with backbones of the papers' sizes, for a GPU.
_base_ = '../bccd.py'
rows = dict(_base_.tables['full'], _delete_=True)
model = rows['swin']['model']
