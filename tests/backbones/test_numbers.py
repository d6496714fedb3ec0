"""Numerical behaviour of every backbone: overflow, half precision, determinism."""

import pytest
import torch

from mmattn.ops.resize import interpolated
from tests.backbones.cases import every_backbone

IMAGES = {
    'noise of 1e-3': lambda noise: 1e-3 * noise,
    'noise of 1e3': lambda noise: 1e3 * noise,
    'constant 0': torch.zeros_like,
    'constant 1e3': lambda noise: torch.full_like(noise, 1e3),
}

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
    # 3e5, which float16 cannot hold. A gradient scaler would arrive at a scale like this one.
    scale = 2**-8 if image == 'constant 0' else 1
    maps = step(backbone, IMAGES[image](torch.randn(2, 3, 48, 64)), dtype, lambda loss: scale * loss)
    assert all(out.isfinite().all() for out in maps)
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in backbone.parameters())


def assert_near(case, dtype, maps, exact):
    for out, reference in zip(maps, exact, strict=True):
        assert (out.float() - reference).norm() < case.half_precision * torch.finfo(dtype).eps * reference.norm()


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


@every_backbone
@either_half
def test_old_optimiser_state(case, dtype):
    """AdamW late in training, with second moments that are tiny or zero: steps under autocast with a gradient scaler
    change all weights and leave them finite."""
    backbone = case.build(case.small)
    optimizer = torch.optim.AdamW(backbone.parameters(), lr=1e-3, weight_decay=0.05)
    for p in backbone.parameters():
        squares = torch.tensor([0.0, 1e-45, 1e-38, 1e-20, 1e-8])
        optimizer.state[p] = dict(
            step=torch.tensor(10000.0),
            exp_avg=torch.zeros_like(p),
            exp_avg_sq=squares[torch.randint(len(squares), p.shape)],
        )
    if hasattr(torch.amp, 'GradScaler'):
        scaler = torch.amp.GradScaler('cpu', init_scale=2**4, enabled=dtype == torch.float16)
    else:
        scaler = torch.cuda.amp.GradScaler(enabled=False)
    before = [p.detach().clone() for p in backbone.parameters()]
    x = torch.randn(2, 3, 48, 64)
    for _ in range(2):
        optimizer.zero_grad()
        step(backbone, x, dtype, scaler.scale)
        scaler.step(optimizer)
        scaler.update()
    assert all(p.isfinite().all() for p in backbone.parameters())
    assert not any(torch.equal(p, old) for p, old in zip(backbone.parameters(), before))
    assert all(out.isfinite().all() for out in step(backbone, x, dtype))


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
