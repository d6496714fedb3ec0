# What the papers leave open, on the toy ImageNet: docs/learning.md has the results.
_base_ = ['../compare/_base_/tasks/classifier.py', '../../_base_/open-questions.py']
model = dict(backbone=_base_.models['msf'], head=dict(in_channels=80))
