# The token mixer of all stages, which does not depend on the size of images.
attentions = dict.fromkeys(('in1k', 'coco', 'ade20k'), dict(type='NeighbourhoodAttention'))
