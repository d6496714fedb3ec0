# The CNNs of table 6, from MMPretrain. The paper trains all networks with one protocol; how it changes the batch and
# the mixing with the size of a model is not public.
_base_ = './in1k.py'
model = dict(head=dict(in_channels=2048))
custom_hooks = [dict(type='SyncBuffersHook')]
