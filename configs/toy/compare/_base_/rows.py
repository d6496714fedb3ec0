# The files of this folder that are models.
rows = 'elsa-swin msf-swin swin nat shunted pvt-v2 msf-vit vit gsa-resnet resnet'.split()
