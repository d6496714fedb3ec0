# VOLO-D5. Its own recipe has neither rate nor drop path; these are those of ELSA-VOLO-D5.
_base_ = ['./_base_/volo-d5.py', './_base_/in1k_d5.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.75), head=_base_.head)
