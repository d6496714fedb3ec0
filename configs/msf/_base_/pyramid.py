# For heads that expect a pyramid: four maps of MSF-ViT-S at stride 16, resized to strides 4, 8, 16 and 32. The neck is
# MMSegmentation's. MMDetection finds it too if MMSegmentation is installed.
settings = dict(out_indices=(2, 5, 8, 11), final_norm=True)
pyramid = dict(type='mmseg.Feature2Pyramid', embed_dim=384)
