# Weights of Large were never released.
backbone = dict(type='ShuntedTransformer', arch='large')
in_channels = [64, 128, 320, 768]
