import io

import pytest
import torch
from mmengine.registry import PARAM_SCHEDULERS
from timm.scheduler import CosineLRScheduler

from mmattn.classification import TimmCosineLR
from mmattn.errors import InputError
from mmguard.runs.configs import load_config
from tests import ROOT

ELSA = dict(t_initial=300, lr_min=1e-5, warmup_t=20, warmup_lr_init=1e-6)


def optimizer() -> torch.optim.Optimizer:
    """Two groups with rates of their own."""
    groups = [dict(params=[torch.nn.Parameter(torch.zeros(1))], lr=lr) for lr in (1e-3, 4e-3)]
    return torch.optim.SGD(groups)


def epochs(optimizer, scheduler, number):
    """The rates of both groups in the next epochs."""
    for _ in range(number):
        yield [group['lr'] for group in optimizer.param_groups]
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize('lag', [0, 1])
def test_is_timms(lag):
    """In all epochs, warm-up and cool-down included, the rates are those of a script that calls timm's scheduler."""
    ours, theirs = optimizer(), optimizer()
    timm = CosineLRScheduler(theirs, **ELSA)
    for epoch, rates in enumerate(epochs(ours, TimmCosineLR(ours, lag=lag, **ELSA), 310)):
        if not lag:
            timm.step(epoch)
        assert rates == [group['lr'] for group in theirs.param_groups], epoch
        timm.step(epoch)


def test_resumes():
    """A scheduler with the state of another goes on with its rates; the state is plain numbers."""
    first, second = optimizer(), optimizer()
    scheduler = TimmCosineLR(first, **ELSA)
    list(epochs(first, scheduler, 30))
    torch.save(scheduler.state_dict(), file := io.BytesIO())
    file.seek(0)
    resumed = TimmCosineLR(second, **ELSA)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    second.load_state_dict(first.state_dict())
    assert list(epochs(second, resumed, 20)) == list(epochs(first, scheduler, 20))


@pytest.mark.parametrize(
    'wrong',
    [dict(t_initial=0), dict(warmup_t=-1), dict(lr_min=-1e-5), dict(lag=-1), dict(warmup_lr_init=-1.0)],
    ids=lambda wrong: next(iter(wrong)),
)
def test_wrong_settings(wrong):
    """Each setting reaches its check."""
    with pytest.raises(ValueError, match=f'{next(iter(wrong))} must be a .* of at least'):
        PARAM_SCHEDULERS.build(dict(type='TimmCosineLR', optimizer=optimizer(), **{**ELSA, **wrong}))


@pytest.mark.parametrize(
    'option, sentence',
    [('t_initail', 'has no argument t_initail: did you mean t_initial'), ('convert_to_iter_based', 'leave out conv')],
)
def test_wrong_arguments_in_a_config(option, sentence):
    """They are found before a run."""
    with pytest.raises(InputError, match=f'param_scheduler .*TimmCosineLR. .*{sentence}'):
        load_config(ROOT / 'configs/elsa_swin/elsa-swin-t_in1k.py', {f'param_scheduler.{option}': True})
