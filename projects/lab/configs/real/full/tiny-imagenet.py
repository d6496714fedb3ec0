# The classifiers of ../tiny-imagenet.py with backbones of the papers' sizes, for a GPU.
_base_ = '../tiny-imagenet.py'
rows = dict(_base_.tables['full'], _delete_=True)
model = rows['swin']['model']
