"""What every backbone does with numbers: no overflow, half precision near float32, the same result twice."""

import pytest
import torch

from tests.backbones.test_common import build, every_backbone

#: how far half precision strays from float32, as a fraction of the maps' norm, in units of its epsilon; about twice
#: what is seen
STRAY = {'ELSASwin': 3, 'GSAResNet': 5, 'ShuntedTransformer': 4, 'MSFViT': 2.5, 'MSFSwin': 4}
PICTURES = {
    'noise of 1e-3': lambda noise: 1e-3 * noise,
    'noise of 1e3': lambda noise: 1e3 * noise,
    'constant 0': torch.zeros_like,
    'constant 1e3': lambda noise: torch.full_like(noise, 1e3),
}

either_half = pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])


def step(backbone, x, dtype, scale=lambda loss: loss):
    """A training step short of the optimiser's: gradients of a distance to fixed random maps."""
    with torch.autocast('cpu', dtype):
        maps = backbone(x)
    generator = torch.Generator().manual_seed(0)
    targets = [torch.randn(out.shape, generator=generator) for out in maps]
    loss = sum((out.float() - target).square().mean() for out, target in zip(maps, targets))
    scale(loss).backward()
    return maps


@every_backbone
@either_half
@pytest.mark.parametrize('picture', PICTURES)
def test_autocast_does_not_overflow(name, dtype, picture):
    """Training in half precision, maps and gradients are finite for pictures of any scale, constant ones included."""
    backbone = build(name)
    # Before training nothing but zeros may become of zeros, where a norm's gradient is 1 / sqrt(eps): that of Shunted's
    # stem is truly 3e5, more than float16 holds. A gradient scaler would come down to the like of this.
    scale = 2**-8 if picture == 'constant 0' else 1
    maps = step(backbone, PICTURES[picture](torch.randn(2, 3, 48, 64)), dtype, lambda loss: scale * loss)
    assert all(out.isfinite().all() for out in maps)
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in backbone.parameters())


def assert_near(name, dtype, maps, exact):
    for out, reference in zip(maps, exact, strict=True):
        assert (out.float() - reference).norm() < STRAY[name] * torch.finfo(dtype).eps * reference.norm()


@every_backbone
@either_half
@pytest.mark.parametrize('whole', [False, True], ids=['autocast', 'whole model'])
@torch.no_grad()
def test_half_precision_is_near_float32(name, dtype, whole):
    """Under autocast, and as model.half() or .bfloat16(), maps are those of float32 but for a few roundings."""
    if whole and dtype == torch.float16 and not hasattr(torch.amp, 'GradScaler'):
        pytest.skip('this torch has no float16 convolutions on the CPU')
    backbone = build(name).eval()
    x = torch.randn(2, 3, 70, 97)
    exact = backbone(x)
    if whole:
        maps = backbone.to(dtype)(x.to(dtype))
        assert all(out.dtype == dtype for out in maps)
    else:
        with torch.autocast('cpu', dtype):
            maps = backbone(x)
    assert_near(name, dtype, maps, exact)


@every_backbone
@either_half
def test_old_optimiser_state(name, dtype):
    """With AdamW's state of step 10 000, second moments down to the least numbers and to zero, steps under autocast and
    a gradient scaler leave finite weights, and are taken."""
    backbone = build(name)
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


@every_backbone
def test_deterministic_mode_repeats_itself(name):
    """The same seed gives the same maps and gradients to the last bit, dropouts included, and deterministic mode finds
    nothing to complain of. Seen on the CPU alone."""
    results = []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            torch.manual_seed(1)
            backbone = build(name, drop_path_rate=0.2)
            # Larger than the tables of relative positions, so that they are stretched.
            maps = step(backbone, torch.randn(2, 3, 96, 80), torch.bfloat16)
            results.append([*maps, *(p.grad for p in backbone.parameters()), *backbone.buffers()])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
