# For heads that expect a pyramid: the maps of D1, of strides 8, 16, 16 and 16, resized to strides 4, 8, 16 and 32. The
# neck is MMSegmentation's. MMDetection finds it too if MMSegmentation is installed.
pyramid = dict(type='mmseg.MultiLevelNeck', in_channels=[192, 384, 384, 384], out_channels=256, scales=[2, 2, 1, 0.5])
