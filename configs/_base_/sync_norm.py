# Batch norm over the images of all GPUs: a detector or segmentor has two images on a GPU, too few for statistics.
sync_norm = dict(type='SyncBN')
