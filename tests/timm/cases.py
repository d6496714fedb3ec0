"""Models of timm's names for the tests."""

import timm
import torch

import mmattn.timm
from tests.backbones.cases import CASES

VARIANTS = mmattn.timm.variants()


def small(name, **arguments):
    """A model with the small settings of its backbone's tests."""
    family, _ = VARIANTS[name]
    settings = {key: value for key, value in CASES[family.backbone.__name__].small.items() if key != 'out_indices'}
    settings[family.backbone.arch_argument] = settings.pop('arch')
    return timm.create_model(name, **{**settings, **arguments}).eval()


def images(batch=1, side=64, channels=3):
    return torch.randn(batch, channels, side, side)
