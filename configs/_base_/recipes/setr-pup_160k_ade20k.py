# SETR's progressive head with UperNet's recipe. Add a backbone and the heads.
_base_ = ['../models/setr-pup.py', '../datasets/ade20k.py', '../schedules/ade20k_160k.py', '../seg_runtime.py']
