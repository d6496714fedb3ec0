# Dilations of the stages by data, where they are not those of the classifiers. The blocks of a stage have them in turn.
# With the largest one, a neighbourhood of 7 x 7 spans the map.
dilations = dict(
    in1k=((1, 8), (1, 4), (1, 2), 1),
    in1k_384=((1, 13), (1, 6), (1, 3), 1),
    coco=((1, 28), (1, 7, 1, 14), (1, 3, 1, 5, 1, 7), (1, 3)),
    ade20k=((1, 16), (1, 4, 1, 8), (1, 2, 1, 3, 1, 4), (1, 2)),
    ade20k_640=((1, 20), (1, 5, 1, 10), (1, 2, 1, 3, 1, 4, 1, 5, 1, 2, 1, 3, 1, 4, 1, 5, 1, 5), (1, 2)),
)
