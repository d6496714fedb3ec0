# SETR with progressive upsampling: four times by 2, with a convolution before each. To be added: as in setr-naive.py.
_base_ = './setr-naive.py'

auxiliary = dict(kernel_size=3)
model = dict(decode_head=dict(num_convs=4, up_scale=2, kernel_size=3))
