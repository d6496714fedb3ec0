import random

import numpy as np
import pytest
import torch
from mmpretrain.registry import BATCH_AUGMENTS

MIXING = [dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]


@pytest.fixture
def batch():
    random.seed(0)
    np.random.seed(0)
    images = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 32, 32) + 10  # no noise looks like them
    return images.clone(), torch.eye(4)


@pytest.mark.parametrize('mixing', MIXING, ids=lambda mixing: mixing['type'])
def test_erases_mixed_images(batch, mixing):
    """Noise of deviation 1 is put over the mixed image, so none of it is mixed into another image. All pixels outside
    of one rectangle are mixed pixels."""
    images, scores = BATCH_AUGMENTS.build(dict(type='MixThenErase', mixing=[mixing], erase_prob=1.0))(*batch)
    noise = images.abs() < 6
    for image, erased, score in zip(images, noise, scores):
        rows, columns = erased.all(0).any(1).nonzero(), erased.all(0).any(0).nonzero()
        box = erased[:, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert box.all() and box.sum() == erased.sum() and 0.01 < erased.float().mean() < 0.36
        assert image[~erased].min() >= 10 and image[~erased].max() <= 13
        assert box.numel() > 3 and 0.5 < image[erased].std() < 1.5
        assert score.sum() == pytest.approx(1)


def test_probability(batch):
    """Without erasing, the batch is mixed only."""
    images, _ = BATCH_AUGMENTS.build(dict(type='MixThenErase', mixing=MIXING, erase_prob=0.0))(*batch)
    assert images.min() >= 10


def test_erases_only(batch):
    """Without mixing, the scores stay, and each image loses a part of itself."""
    images, scores = BATCH_AUGMENTS.build(dict(type='MixThenErase', mixing=[], erase_prob=1.0))(*batch)
    assert torch.equal(scores, torch.eye(4))
    for index, image in enumerate(images):
        kept = image[image > 6]
        assert (kept == index + 10).all() and 0.6 < len(kept) / image.numel() < 1


def test_refuses_probabilities():
    """25 for 25 percent would erase in all images."""
    with pytest.raises(ValueError, match='erase_prob must be a finite number from 0 to 1'):
        BATCH_AUGMENTS.build(dict(type='MixThenErase', mixing=[], erase_prob=25))
