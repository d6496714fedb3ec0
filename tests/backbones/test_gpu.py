"""Backbones on a GPU: results and gradients of the CPU, half precision, deterministic runs, torch.compile, training."""

import pytest
import torch

from tests.backbones.cases import every_backbone
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu
either_half = pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])


def step(model, x, dtype=None):
    """Maps and gradients of a step, under autocast if there is a dtype.

    The loss is a sum with fixed weights: the mean square of a normalised map is constant and has no gradient.
    """
    model.zero_grad()
    with torch.autocast(x.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        maps = model(x)
    weights = [torch.sin(torch.arange(out.numel(), device=x.device)).view(out.shape) for out in maps]
    sum((out.float() * weight).mean() for out, weight in zip(maps, weights)).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [x.detach().float().cpu() for x in (*maps, *grads)]


def error(ours, expected):
    """Of all tensors together, as a fraction of their norm."""
    total = [sum(float(x.square().sum()) for x in xs) for xs in ([a - b for a, b in zip(ours, expected)], expected)]
    return (total[0] / total[1]) ** 0.5


@every_backbone
@pytest.mark.parametrize('size', [(70, 101), (224, 160)])
def test_results_are_those_of_the_cpu(monkeypatch, case, size):
    """In float32: by default, convolutions on a GPU round to TF32, with 10 bits."""
    monkeypatch.setattr(torch.backends.cudnn, 'allow_tf32', False)
    backbone, x = case.build(case.small, drop_path_rate=0.0).eval(), torch.randn(2, 3, *size)
    expected = step(backbone, x)
    ours = step(backbone.to(DEVICE), x.to(DEVICE))
    for out, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(out, reference, atol=1e-3 * float(reference.abs().max()), rtol=1e-3)


@every_backbone
@either_half
def test_half_precision(case, dtype):
    """Under autocast, maps and gradients are finite and near those of float32."""
    backbone, x = (
        case.build(case.small, drop_path_rate=0.0).to(DEVICE).eval(),
        torch.randn(2, 3, 70, 101, device=DEVICE),
    )
    assert error(step(backbone, x, dtype), step(backbone, x)) < 50 * torch.finfo(dtype).eps


@every_backbone
@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
def test_deterministic(monkeypatch, case, dtype):
    """With torch's deterministic algorithms, two runs are equal to the bit."""
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    backbone, x = case.build(case.small).to(DEVICE), torch.randn(2, 3, 129, 75, device=DEVICE)
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(2):
            torch.manual_seed(1)
            runs.append(step(backbone.train(), x, dtype))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@every_backbone
@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
def test_compiled(case, dtype):
    """torch.compile gives the results of eager mode at several sizes."""
    torch._dynamo.reset()
    backbone = case.build(case.tiny, drop_path_rate=0.0).to(DEVICE).eval()
    options = {'layout_optimization': False}
    if case.name == 'ShuntedTransformer':  # torch 2.11 fails without it: see docs/predict.md
        options['triton.coalesce_tiling_analysis'] = False
        if dtype is None:
            pytest.skip('torch 2.11 compiles float32 attention with heads of 4 channels for the first size only')
    compiled = torch.compile(backbone, dynamic=True, options=options)
    for size in ((70, 101), (128, 64)):
        x = torch.randn(2, 3, *size, device=DEVICE)
        tolerance = 1e-4 if dtype is None else 50 * torch.finfo(dtype).eps
        assert error(step(compiled, x, dtype), step(backbone, x, dtype)) < tolerance


@every_backbone
def test_training(case):
    """A classifier of stripes learns in float32, and about as well in float16 and bfloat16. No loss is NaN."""
    final = {}
    for dtype in (None, torch.float16, torch.bfloat16):
        torch.manual_seed(0)
        backbone = case.build(case.trained, drop_path_rate=0.0).to(DEVICE)
        head = torch.nn.Linear(backbone.out_channels[-1], 2).to(DEVICE)
        optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=3e-4)
        scaler = torch.cuda.amp.GradScaler(enabled=DEVICE == 'cuda' and dtype == torch.float16)
        losses = []
        for _ in range(STEPS):
            x, labels = stripes(16)
            with torch.autocast(DEVICE, dtype or torch.bfloat16, enabled=dtype is not None):
                scores = head(backbone(x)[-1].mean((2, 3)))
            loss = torch.nn.functional.cross_entropy(scores.float(), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        losses = torch.stack(losses).cpu()
        assert losses.isfinite().all()
        final[dtype] = float(losses[-STEPS // 5 :].mean())
    print(f'\n{case.name}: ' + ', '.join(f'{dtype or torch.float32}: {loss:.4f}' for dtype, loss in final.items()))
    assert final[None] < 0.6 and all(loss < final[None] + 0.1 for loss in final.values())


STEPS = 200


def stripes(count):
    """Noisy images with horizontal or vertical stripes of random phase, and which of the two."""
    labels = torch.randint(2, (count,), device=DEVICE)
    phase = torch.rand(count, 1, 1, 1, device=DEVICE) * 6.28
    waves = torch.sin(torch.arange(64, device=DEVICE) / 3 + phase).expand(count, 3, 64, 64)
    images = torch.where(labels.view(-1, 1, 1, 1) == 1, waves, waves.transpose(2, 3))
    return images + torch.randn_like(images), labels
