# Mixes of mechanisms as classifiers of the toy ImageNet. MMATTN_ROW=conv-gsa in the environment chooses a row.
_base_ = ['./_base_/mixes.py', '../compare/_base_/tasks/classifier.py']
model = dict(backbone=dict(_base_.backbone, out_indices=(3,)), head=dict(in_channels=192))
