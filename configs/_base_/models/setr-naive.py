# SETR with its naive heads, which upsample by 4. The head reads the last map. The backbone, decode_head.in_channels and
# auxiliary_head are to be added: auxiliary with in_channels and in_index, for each map before the last.
_base_ = './setr.py'

auxiliary = dict(type='SETRUPHead', channels=256, num_convs=2, up_scale=4, kernel_size=1)
model = dict(decode_head=dict(type='SETRUPHead', channels=256, in_index=-1, num_convs=1, up_scale=4, kernel_size=1))
