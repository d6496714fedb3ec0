# SETR with progressive upsampling.
_base_ = './setr-naive.py'

model = dict(
    decode_head=dict(num_convs=4, up_scale=2, kernel_size=3),
    auxiliary_head=[dict(head, kernel_size=3) for head in _base_.model.auxiliary_head],
)
