"""Batch norm, sum and ReLU of residual blocks: Triton kernels beside torch, and what stays with torch."""

import copy

import pytest
import torch
from torch import nn

from mmattn.backbones.gsa_resnet import Bottleneck
from mmattn.layers import DropPath
from mmattn.ops import batch_norm
from mmattn.ops.recompute import recompute


@pytest.fixture
def kernels(triton_runs, monkeypatch):
    """The module of the kernels, which serve here, too, and of which small maps need several programs."""
    module = pytest.importorskip('mmattn.ops.batch_norm.triton', exc_type=ImportError)
    monkeypatch.setattr(batch_norm, 'triton_takes', lambda x: True)
    for name, value in dict(CHANNELS=4, NUMBERS=64, PROGRAMS=8, PARTS=2).items():
        monkeypatch.setattr(module, name, value)
    return module


def block(in_channels=6):
    """One whose norms have seen something, and whose shortcut is the map itself, if that has 6 channels."""
    made = Bottleneck(
        in_channels, 5, 6, stride=1, attn=None, keep_conv=False, norm_cfg=dict(type='BN', momentum=0.3), drop_path=0.0
    )
    for norm in (each for each in made.modules() if isinstance(each, nn.BatchNorm2d)):
        for x in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            nn.init.uniform_(x, 0.5, 1.5)
    return made


def twice(function):
    """What the kernels give, and what torch gives."""
    with pytest.MonkeyPatch.context() as patch:
        found = function()
        patch.setattr(batch_norm, 'triton_takes', lambda x: False)
        return found, function()


@pytest.mark.parametrize('how', ['training', 'norm in the shortcut', 'recomputed', 'frozen statistics', 'inference'])
def test_kernels_in_a_block(kernels, monkeypatch, how):
    """The result, all gradients, running statistics and the number of batches are those of torch's modules."""
    channels = 4 if how == 'norm in the shortcut' else 6
    made, image, calls = block(channels), torch.randn(2, channels, 7, 5), []
    monkeypatch.setattr(kernels, 'NormReLU', lambda *args, kernel=kernels.NormReLU: calls.append(1) or kernel(*args))

    def run():
        ours = copy.deepcopy(made).train(how not in ('frozen statistics', 'inference'))
        x = image.clone().requires_grad_()
        with torch.set_grad_enabled(how != 'inference'):
            out = recompute(ours, x) if how == 'recomputed' else ours(x)
        gradients = torch.autograd.grad(out.square().sum(), [x, *ours.parameters()]) if out.requires_grad else []
        return out, list(gradients), ours.state_dict()

    torch.testing.assert_close(*twice(run), rtol=1e-4, atol=1e-4)
    assert len(calls) == {'recomputed': 6, 'norm in the shortcut': 4}.get(how, 3)


def test_half_precision_for_what_follows(kernels):
    """Under autocast, a float32 map becomes one in half precision. Its gradient is float32."""
    norm, image, found = nn.BatchNorm2d(6), torch.randn(2, 6, 7, 5).requires_grad_(), []
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast('cpu', torch.bfloat16, enabled=dtype != torch.float32):
            out = batch_norm.norm_then_relu(norm, image)(image)
        assert out.dtype == dtype
        found.append((out.float(), *torch.autograd.grad(out.float().square().sum(), image)))
    torch.testing.assert_close(*found, atol=0.05, rtol=0.05)


@pytest.mark.parametrize('trained', [True, False], ids=['trained', 'frozen'])
def test_a_convolution_of_the_result(kernels, trained):
    """Under autocast, as torch's modules, of which each keeps its input. Filters that are not trained have no gradient.
    Hooks of a convolution are called, and so is another ``forward``."""
    norm, conv, image = nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3, 2, 1).requires_grad_(trained), torch.randn(2, 6, 7, 5)
    found = []
    for function in (batch_norm.convolution_of_relu, lambda norm, conv, x: conv(norm(x).relu())):
        x, ours = image.clone().requires_grad_(), copy.deepcopy(conv)
        with torch.autocast('cpu', torch.bfloat16):
            out = function(copy.deepcopy(norm), ours, x)
        out.float().square().sum().backward()
        found.append((out, x.grad, ours.weight.grad, ours.bias.grad))
    assert found[0][0].dtype == torch.bfloat16 and (found[0][2] is not None) == trained
    torch.testing.assert_close(*found, atol=0.1, rtol=0.1)
    replaced = copy.deepcopy(conv)
    replaced.forward = lambda x: x
    conv.register_forward_hook(lambda *_: None)
    assert batch_norm.convolution_of_relu(norm, conv, image) is None
    assert batch_norm.convolution_of_relu(norm, replaced, image) is None


def test_second_derivatives(kernels):
    """Of training and of frozen statistics, as torch has them."""
    made, image = block(), torch.randn(2, 6, 4, 3)

    def run():
        found = []
        for training in (True, False):
            x = image.clone().requires_grad_()
            ours = copy.deepcopy(made).train(training)
            (first,) = torch.autograd.grad(ours(x).square().sum(), x, create_graph=True)
            found += torch.autograd.grad(first.square().sum(), [x, ours.bn2.weight, ours.bn3.weight])
        return found

    torch.testing.assert_close(*twice(run), rtol=1e-3, atol=1e-3)


def hooked(norm, **_):
    norm.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    'change',
    [
        hooked,
        lambda norm, drop_path, **_: setattr(drop_path, 'drop_prob', 0.5),
        lambda norm, **_: setattr(norm, 'momentum', None),
        lambda norm, **_: setattr(norm, '__class__', nn.SyncBatchNorm),
        lambda norm, **_: norm.register_parameter('weight', None),
        lambda norm, x, **_: x.resize_(1, 4, 1, 1),
    ],
    ids=['hook', 'drop path', 'mean of all batches', 'other norm', 'no weight', 'one pixel'],
)
@pytest.mark.usefixtures('kernels')
def test_what_stays_with_torch(change):
    """Whatever needs the module itself, or has numbers that the kernels do not."""
    norm, drop_path, x = nn.BatchNorm2d(4), DropPath(0.0), torch.randn(2, 4, 3, 3)
    served = lambda: batch_norm.kernels_serve(norm, x, x, drop_path)
    assert served()
    change(norm=norm, drop_path=drop_path, x=x)
    assert not served()
