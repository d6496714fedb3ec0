# The files of this folder that are models.
rows = 'elsa-swin msf-swin swin shunted pvt-v2 msf-vit vit gsa-resnet resnet'.split()
