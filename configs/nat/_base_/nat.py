# The mechanism of all stages, which does not depend on the size of images.
attention = dict.fromkeys(('in1k', 'coco', 'ade20k'), dict(type='NeighbourhoodAttention'))
