# Table 6 of ELSA, a reconstruction: see README.md. The drop path is printed by neither ELSA nor VOLO's script.
_base_ = ['./_base_/elsa-volo-d5.py', './_base_/in1k_d5.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.75), head=_base_.head)
