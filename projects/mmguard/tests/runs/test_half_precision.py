import pytest
import torch
from mmengine.config import Config
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from mmguard.errors import InputError
from mmguard.runs import configs
from tests import ROOT


@pytest.mark.parametrize('device, expected', [('cpu', 'BFloat16OptimWrapper'), ('cuda', 'AmpOptimWrapper')])
def test_amp_on_each_device(monkeypatch, device, expected):
    """--amp trains in bfloat16 on a CPU, where MMEngine's wrapper refuses to."""
    monkeypatch.setattr(configs, 'get_device', lambda: device)
    cfg = Config(dict(optim_wrapper=dict(type='OptimWrapper')))
    configs.enable_amp(cfg)
    assert cfg.optim_wrapper.type == expected


def test_amp_takes_its_dtype(monkeypatch):
    """An option may set what only the wrapper of --amp takes."""
    monkeypatch.setattr(configs, 'get_device', lambda: 'cuda')
    config, options = (
        ROOT / 'projects/lab/configs/toy' / 'elsa-swin-toy_upernet.py',
        {'optim_wrapper.dtype': 'bfloat16'},
    )
    assert configs.load_config(config, options, amp=True).optim_wrapper.dtype == 'bfloat16'
    with pytest.raises(InputError, match='no argument dtype'):
        configs.load_config(config, options)


def test_amp_of_two_stages(monkeypatch):
    """Training ends in a sentence before it starts, where MMCV's NMS would refuse bfloat16 after a step."""
    cfg = Config(dict(optim_wrapper=dict(type='OptimWrapper'), model=dict(rpn_head=dict())))
    monkeypatch.setattr(configs, 'get_device', lambda: 'cpu')
    with pytest.raises(InputError, match='rpn_head on a CPU'):
        configs.enable_amp(cfg)
    monkeypatch.setattr(configs, 'get_device', lambda: 'cuda')
    configs.enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'


def test_bfloat16_on_a_cpu():
    """Products are computed in bfloat16, also after a step that only collects gradients; weights stay
    float32."""
    layer = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    wrapper = OPTIM_WRAPPERS.build(dict(type='BFloat16OptimWrapper', optimizer=optimizer, accumulative_counts=2))
    before = layer.weight.detach().clone()
    for _ in range(2):
        with wrapper.optim_context(layer):
            out = layer(torch.ones(2, 8))
        assert out.dtype == torch.bfloat16
        wrapper.update_params(out.float().square().mean())
    assert layer.weight.dtype == torch.float32 and not torch.equal(layer.weight, before)
