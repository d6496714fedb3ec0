"""Numerical behaviour of every backbone: overflow, half precision, determinism."""

import pytest
import torch

from mmattn.ops.resize import interpolated
from tests.backbones.cases import every_backbone

IMAGES = {'noise of 1e3': lambda noise: 1e3 * noise, 'constant 0': torch.zeros_like}

#: bound of the error in half precision, as a fraction of the norm of a map, in units of the epsilon of the dtype: about
#: twice what is seen
HALF_PRECISION = 5

either_half = pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])


def step(backbone, x, dtype, scale=lambda loss: loss):
    """Maps, and gradients of their squared distance to fixed random maps."""
    with torch.autocast('cpu', dtype):
        maps = backbone(x)
    generator = torch.Generator().manual_seed(0)
    targets = [torch.randn(out.shape, generator=generator) for out in maps]
    loss = sum((out.float() - target).square().mean() for out, target in zip(maps, targets))
    scale(loss).backward()
    return maps


@every_backbone
@either_half
@pytest.mark.parametrize('image', IMAGES)
def test_autocast_does_not_overflow(case, dtype, image):
    """In half precision, maps and gradients are finite for images of any scale, also for constant images."""
    backbone = case.build(case.small)
    # An untrained stem may map zeros to zeros. There the gradient of a norm is 1 / sqrt(eps): that of Shunted's stem is
    # 3e5, which float16 cannot hold. Nor can it hold the gradient of ViTFrame's patches, which have no norm, where
    # images are 1e3. A gradient scaler would arrive at a scale like this one.
    scale = 2**-8 if image == 'constant 0' or case.name == 'ViTFrame' else 1
    maps = step(backbone, IMAGES[image](torch.randn(2, 3, 48, 64)), dtype, lambda loss: scale * loss)
    assert all(out.isfinite().all() for out in maps)
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in backbone.parameters())


def assert_near(case, dtype, maps, exact):
    for out, reference in zip(maps, exact, strict=True):
        assert (out.float() - reference).norm() < HALF_PRECISION * torch.finfo(dtype).eps * reference.norm()


@every_backbone
@either_half
@pytest.mark.parametrize('whole', [False, True], ids=['autocast', 'whole model'])
@torch.no_grad()
def test_half_precision_is_near_float32(case, dtype, whole):
    """Under autocast, and as model.half() or .bfloat16(), the maps differ from those of float32 by a few roundings."""
    if whole and dtype == torch.float16 and not hasattr(torch.amp, 'GradScaler'):
        pytest.skip('this torch has no float16 convolutions on the CPU')
    backbone = case.build(case.small).eval()
    x = torch.randn(2, 3, 70, 97)
    exact = backbone(x)
    if whole:
        maps = backbone.to(dtype)(x.to(dtype))
        assert all(out.dtype == dtype for out in maps)
    else:
        with torch.autocast('cpu', dtype):
            maps = backbone(x)
    assert_near(case, dtype, maps, exact)


def test_positions_in_deterministic_mode(monkeypatch):
    """There, tables of positions are interpolated in another way, because F.interpolate cannot be trained on a GPU."""
    table = torch.randn(1, 3, 7, 5, dtype=torch.float64)
    expected = interpolated(table, 4, 9)
    monkeypatch.setattr(torch, 'are_deterministic_algorithms_enabled', lambda: True)
    out = interpolated(table.requires_grad_(), 4, 9)
    torch.testing.assert_close(out, expected)
    assert 'Upsample' not in out.grad_fn.name()


@every_backbone
def test_deterministic_mode_repeats_itself(case):
    """The same seed gives exactly the same maps and gradients, also with dropout, and deterministic mode raises no
    error. Checked on the CPU only."""
    results = []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            torch.manual_seed(1)
            backbone = case.build(case.small, drop_path_rate=0.2)
            # Larger than the tables of relative positions, so that these are fitted.
            maps = step(backbone, torch.randn(2, 3, 96, 80), torch.bfloat16)
            results.append([*maps, *(p.grad for p in backbone.parameters()), *backbone.buffers()])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
