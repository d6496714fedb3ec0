"""Parameters without a gradient, in one process and in several."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import nn

from mmguard.checks.channels import only_read_maps
from mmguard.errors import InputError
from mmguard.runs import running
from mmguard.runs.unused import UnusedParameterHook

from .small_training import Model, build, in_two_processes

MODEL = dict(
    backbone=dict(type='ELSASwin', out_indices=(0, 1, 2, 3)),
    decode_head=dict(type='mmseg.FCNHead', in_channels=768, in_index=3),
)


class Idle(Model):
    """A model with a layer that nothing reads, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.idle, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)


def test_one_process_goes_on(tmp_path, capsys):
    """The log names once what is not trained, also after something was compiled."""
    torch.compile(nn.Identity(), backend='eager')(torch.ones(1))
    build(tmp_path, model=Idle(), custom_hooks=[UnusedParameterHook()]).train()
    out = capsys.readouterr().out
    assert out.count('no gradient reaches idle.weight, idle.bias in the first step, so they are not trained') == 1
    assert 'frozen' not in out


def test_nothing_to_say(tmp_path, capsys):
    """All parameters have gradients; or the config expects that some have none."""
    build(tmp_path / 'a', custom_hooks=[UnusedParameterHook()]).train()
    cfg = Config(dict(find_unused_parameters=True))
    build(tmp_path / 'b', model=Idle(), cfg=cfg, custom_hooks=[UnusedParameterHook()]).train()
    assert 'no gradient' not in capsys.readouterr().out


def trained(rank, folder, find):
    """How a training in two processes ends, and in which step."""
    wrapper = dict(type='MMDistributedDataParallel', device_ids=None, find_unused_parameters=find)
    cfg = Config(dict(model_wrapper_cfg=wrapper))
    runner = build(folder, model=Idle(), launcher='pytorch', cfg=cfg, seed=0, experiment_name=f'{folder.name}{rank}')
    runner.register_hook(UnusedParameterHook(), 'HIGHEST')
    try:
        running._run(runner, runner.train)
    except Exception as error:
        return type(error).__name__, str(error), runner.iter
    return 'trained'


@pytest.mark.parametrize('find', [False, True])
def test_several_processes(tmp_path, monkeypatch, find):
    """They are refused before the first step, unless the config sets find_unused_parameters."""
    monkeypatch.setattr(running, 'check_built_datasets', lambda _: None)
    ends = in_two_processes(trained, tmp_path, find)
    if find:
        assert ends == ['trained', 'trained']
    else:
        for kind, sentence, step in ends:
            assert kind == 'InputError' and step == 0
            assert sentence.startswith('no gradient reaches idle.weight, idle.bias, but')
            assert 'find_unused_parameters=True' in sentence
    assert bool(list(tmp_path.glob('*.pth'))) == find


def test_later_steps():
    """What DistributedDataParallel says of a parameter that loses its gradient later becomes a sentence too."""
    model = Idle()
    runner = SimpleNamespace(
        cfg=Config(), model=model, register_hook=lambda *_: None, build_dataloader=None, train_dataloader=None
    )

    def run():
        raise RuntimeError(
            'Expected to have finished reduction in the prior iteration before starting a new one. ...\n'
            'Parameter indices which did not receive grad for rank 1: 6 7\n In addition, ...'
        )

    with pytest.raises(InputError, match='no gradient reaches idle.weight, idle.bias, but .*find_unused_parameters'):
        running._run(runner, run)


@pytest.mark.parametrize(
    'changes, settings',
    [
        ({}, 'model.backbone.out_indices=(3,), model.decode_head.in_index=0'),
        (
            {'auxiliary_head': dict(type='mmseg.FCNHead', in_channels=384, in_index=2)},
            'model.backbone.out_indices=(2, 3), model.decode_head.in_index=1, model.auxiliary_head.in_index=0',
        ),
        (
            {'decode_head.in_index': [1, 3], 'decode_head.in_channels': [192, 768]},
            'model.backbone.out_indices=(1, 3), model.decode_head.in_index=[0, 1]',
        ),
        # all maps are read; another part reads them; not known
        ({'decode_head.in_index': [0, 1, 2, 3], 'decode_head.in_channels': [96, 192, 384, 768]}, ''),
        ({'neck': dict(type='mmseg.MLANeck')}, ''),
        ({'decode_head': dict(type='mmdet.MaskFormerHead')}, ''),
    ],
)
def test_settings_for_the_maps_that_are_read(changes, settings):
    """The lines to write, so that a backbone returns no map that no head reads."""
    cfg = Config(dict(model=MODEL))
    cfg.merge_from_dict({f'model.{key}': value for key, value in changes.items()})
    built = SimpleNamespace(backbone=SimpleNamespace(out_indices=(0, 1, 2, 3)))
    with DefaultScope.overwrite_default_scope('mmseg'):
        assert only_read_maps(cfg.model, built) == settings
