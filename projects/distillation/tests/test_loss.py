import math

import pytest
import torch

from mmattn.errors import InputError
from mmattn_distillation import FeatureLoss


def by_loops(prediction, target, cosine_weight, smooth_l1_weight, beta):
    """The loss of one image as it is written: sums over positions and channels, in Python."""
    total, positions = 0.0, list(zip(prediction.flatten(1).T.tolist(), target.flatten(1).T.tolist()))
    for p, t in positions:
        cosine = sum(a * b for a, b in zip(p, t)) / math.sqrt(sum(a * a for a in p) * sum(b * b for b in t))
        distance = 0.0
        for a, b in zip(p, t):
            d = abs(a - b)
            distance += d * d / (2 * beta) if d < beta else d - beta / 2
        total += cosine_weight * (1 - cosine) + smooth_l1_weight * distance / len(p)
    return total / len(positions)


@pytest.mark.parametrize('shape', [(2, 5), (2, 5, 3, 4)])
@pytest.mark.parametrize('settings', [{}, dict(cosine_weight=1.0, smooth_l1_weight=0.25, beta=0.5)])
def test_equals_plain_loops(shape, settings):
    """Vectors and maps have the loss that the docstring says, with default and other weights."""
    prediction, target = (2 * torch.randn(shape, dtype=torch.float64) for _ in range(2))
    full = dict(cosine_weight=0.5, smooth_l1_weight=0.5, beta=1.0)
    full.update(settings)
    wanted = [by_loops(p.view(5, -1), t.view(5, -1), **full) for p, t in zip(prediction, target)]
    found = FeatureLoss(**settings)(prediction, target)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


def test_gradient():
    """Both parts of the loss have the right gradient."""
    prediction = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    target = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: FeatureLoss()(x, target), [prediction])


@pytest.mark.parametrize('settings', [dict(beta=-1), dict(cosine_weight=0, smooth_l1_weight=0)])
def test_refuses(settings):
    """A loss that cannot be meant is refused by name."""
    with pytest.raises(InputError, match=next(iter(settings))):
        FeatureLoss(**settings)
