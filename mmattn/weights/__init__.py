"""Reading checkpoint files without running code in them, and comparing their tensors with those of a model, and
loading them strictly."""

from ..errors import CheckpointError
from .files import plain_names, read_checkpoint, read_file, weights_in
from .first_pass import evaluating, noise_image
from .sources import check_source, timm_release
from .strict import StrictModule, is_pretrained, log_changes_with_images, split_init_cfg
from .translation import (
    Translation,
    changed_with_images,
    check_floats,
    compare_settings,
    differing_settings,
    first_names,
    fit_tables,
    is_setting,
    listed,
    misfits,
    odd_form,
    renamed,
    take,
    take_out,
    unusable,
)

__all__ = [
    'CheckpointError',
    'StrictModule',
    'Translation',
    'changed_with_images',
    'check_floats',
    'check_source',
    'compare_settings',
    'differing_settings',
    'evaluating',
    'first_names',
    'fit_tables',
    'is_setting',
    'is_pretrained',
    'listed',
    'log_changes_with_images',
    'misfits',
    'noise_image',
    'odd_form',
    'plain_names',
    'read_checkpoint',
    'read_file',
    'renamed',
    'split_init_cfg',
    'take',
    'take_out',
    'timm_release',
    'unusable',
    'weights_in',
]
