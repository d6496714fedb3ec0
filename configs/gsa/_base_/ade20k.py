# Settings of a GSA-ResNet in a segmentor. The size is that of the crop: every distance in it has its own embedding,
# which starts as the classifier's, or at 0 if that has none.
settings = dict(img_size=512)
