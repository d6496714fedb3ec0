# timm's rand-m9-mstd0.5-inc1, which ELSA and Shunted use; hparams are to be added.
rand_augment = dict(
    type='RandAugment', policies='timm_increasing', num_policies=2, total_level=10, magnitude_level=9, magnitude_std=0.5
)
fill = [104, 116, 124]  # the mean colour, as BGR
