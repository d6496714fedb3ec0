# Settings of a GSA-ResNet in a segmentor.
settings = dict(
    img_size=512  # the crop: every distance in it has its own embedding, which starts as the classifier's, stretched
)
