import copy

import pytest
import torch
from torch import nn

from mmattn.layers import batch_norm, conv_norm


@pytest.mark.parametrize('norm_type, cls', [('BN', nn.BatchNorm2d), ('SyncBN', nn.SyncBatchNorm)])
def test_types_and_settings(norm_type, cls):
    """OpenMMLab's names, with torch's settings; requires_grad=False freezes scale and offset."""
    norm = batch_norm(4, dict(type=norm_type, momentum=0.3, requires_grad=False))
    assert type(norm) is cls and norm.num_features == 4 and norm.momentum == 0.3
    assert not any(p.requires_grad for p in norm.parameters())
    assert all(p.requires_grad for p in batch_norm(4, dict(type=norm_type)).parameters())


@pytest.mark.parametrize('norm_cfg, message', [
    (dict(type='GN'), "'GN'"), (dict(eps=1e-3), 'norm_cfg'), (None, 'norm_cfg'),
    (dict(type='BN', epsilon=1.), 'epsilon')])
def test_bad_norm_cfg_is_named(norm_cfg, message):
    with pytest.raises((ValueError, TypeError), match=message):
        batch_norm(4, norm_cfg)


@pytest.mark.parametrize('training', [False, True])
def test_conv_norm(training):
    """The map and all gradients of a convolution followed by its norm; in training, the same running statistics."""
    conv = nn.Conv2d(3, 4, 3, 2, 1, bias=False).double()
    norm = batch_norm(4, dict(type='BN')).double().train(training)
    for value in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
        nn.init.uniform_(value, 0.5, 1.5)
    x, state, results = torch.randn(2, 3, 7, 6, dtype=torch.float64, requires_grad=True), copy.deepcopy(norm.state_dict()), []
    for run in (lambda: conv_norm(x, conv, norm), lambda: norm(conv(x))):
        norm.load_state_dict(state)
        out = run()
        grads = torch.autograd.grad(out.square().sum(), [x, conv.weight, norm.weight, norm.bias])
        results.append([out, *grads, norm.running_mean.clone(), norm.running_var.clone()])
    for value, expected in zip(*results, strict=True):
        torch.testing.assert_close(value, expected)
