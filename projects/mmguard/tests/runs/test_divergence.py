"""A training that diverges is stopped, and the checkpoints that it has are of use."""

import math

import pytest
import torch
from mmengine.hooks import EMAHook, Hook
from mmengine.optim.optimizer import amp_optimizer_wrapper
from torch import nn

from mmguard.errors import InputError
from mmguard.runs import divergence, running
from mmguard.runs.divergence import first_broken

from .small_training import Model, build

NO_CHECKPOINTS = dict(interval=-1, save_last=False)
BEST = dict(save_best='acc', rule='greater')


class Diverging(Model):
    """Its loss is not finite in some steps, counted from 1; without gradients, the weights stay as they are."""

    def __init__(self, steps, value=math.nan, gradients=True):
        super().__init__()
        self.bad, self.value, self.gradients, self.step = steps, value, gradients, 0

    def forward(self, x, mode='tensor'):
        out = super().forward(x, mode)
        if mode == 'loss':
            self.step += 1
            if self.step in self.bad:
                out['loss'] = out['loss'] * self.value if self.gradients else out['loss'] * 0 + self.value
        return out


def train(folder, *args, stopped=None, **settings):
    """Train; a training that is to be stopped says why, and up to which step."""
    runner = build(folder, *args, **settings)
    if stopped is None:
        return running._run(runner, runner.train)
    reason, step = stopped
    with pytest.raises(InputError, match=f'the training has diverged: {reason}, up to step {step}; .*clip_grad'):
        running._run(runner, runner.train)


def finite_checkpoints(folder):
    """The names of the checkpoints in a folder, all of which must be finite."""
    paths = sorted(folder.glob('*.pth'))
    assert not any(first_broken(torch.load(path, weights_only=False)['state_dict']) for path in paths)
    return [path.name for path in paths]


def test_first_broken():
    """Optimizers by name, and tensors without fractions. A mask of attention has infinities, but no NaN."""
    mask = torch.full((3, 3), -torch.inf).triu(1)
    assert not first_broken({'block.causal_mask': mask})
    assert first_broken({'block.causal_mask': mask * 0}) and first_broken({'block.weight': mask})
    assert first_broken(dict(a=nn.Linear(1, 1).state_dict(), b=[torch.ones(1, dtype=torch.long), 3, None])) == ''
    assert first_broken(dict(a=[dict(x=torch.tensor(math.nan))])) == 'a x'


@pytest.mark.parametrize('by_epoch, hook', [(False, 'AtomicCheckpointHook'), (True, 'CheckpointHook')])
def test_last_finite_checkpoint_stays(tmp_path, by_epoch, hook):
    """One NaN breaks all weights. No checkpoint has them, and none is removed for one."""
    stopped = 'layers.0.weight has a NaN or an infinity', 8 if by_epoch else 6
    options = dict(BEST, type=hook, max_keep_ckpts=1)
    train(tmp_path, by_epoch, stopped=stopped, validate=True, checkpoint=options, model=Diverging([5]))
    assert finite_checkpoints(tmp_path) == (['epoch_1.pth'] if by_epoch else ['best_acc_iter_4.pth', 'iter_4.pth'])


def test_best_checkpoint_stays(tmp_path):
    """Broken weights are not evaluated, so they cannot become the best checkpoint."""
    stopped = 'layers.0.weight has .*', 6
    train(tmp_path, stopped=stopped, validate=True, checkpoint={**NO_CHECKPOINTS, **BEST}, model=Diverging([5]))
    assert finite_checkpoints(tmp_path) == ['best_acc_iter_4.pth']


@pytest.mark.parametrize('by_epoch, value', [(False, math.nan), (True, -math.inf)])
def test_loss_stays_non_finite(tmp_path, by_epoch, value):
    """The training stops before twenty such steps, also if the weights stay finite. Nine in a row that break none,
    several times, do not stop it."""
    stopped = 'the loss was NaN or infinite in the last 16 steps', 20
    model = Diverging(range(5, 100), value, gradients=False)
    train(tmp_path, by_epoch, stopped=stopped, steps=40, checkpoint=NO_CHECKPOINTS, model=model)
    model = Diverging({step for step in range(1, 40) if step % 10}, value, gradients=False)
    train(tmp_path, by_epoch, steps=40, checkpoint=NO_CHECKPOINTS, model=model)


def test_gradient_accumulation(tmp_path):
    """Steps of the loop are counted, not updates of the weights."""
    wrapper = dict(optimizer=dict(type='SGD', lr=0.1), accumulative_counts=4)
    settings = dict(steps=40, checkpoint=NO_CHECKPOINTS, model=Diverging([5]), optim_wrapper=wrapper)
    train(tmp_path, stopped=('the loss was .* in the last 12 steps', 20), **settings)


class Scaler:
    """As torch's, which needs a GPU: a step with gradients that are not finite is skipped."""

    def scale(self, loss):
        return loss

    def step(self, optimizer):
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group['params']]
        if not first_broken(gradients, 'gradient'):
            optimizer.step()

    def update(self, scale):
        pass

    def state_dict(self):
        return {}


@pytest.mark.parametrize('last, step', [(85, None), (200, 110)])
def test_mixed_precision(tmp_path, monkeypatch, last, step):
    """Steps that the scaler skips do not stop a training, unless there is nothing else any more."""
    monkeypatch.setattr(amp_optimizer_wrapper, 'is_cuda_available', lambda: True)
    monkeypatch.setattr(amp_optimizer_wrapper, 'GradScaler', Scaler)
    wrapper = dict(type='AmpOptimWrapper', dtype='bfloat16', optimizer=dict(type='SGD', lr=0.001))
    settings = dict(steps=120, model=Diverging(range(5, last)), optim_wrapper=wrapper, checkpoint=dict(interval=60))
    train(tmp_path, stopped=step and ('the loss was .* in the last 106 steps', step), **settings)
    assert 'iter_60.pth' in finite_checkpoints(tmp_path)


class Spoil(Hook):
    """Spoils the state of the optimizer, or the averaged weights, in step 5."""

    def __init__(self, averages):
        self.averages = averages

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 4 and self.averages:
            next(hook for hook in runner.hooks if isinstance(hook, EMAHook)).ema_model.module.layers[2].bias.data /= 0
        elif runner.iter == 4:
            next(iter(runner.optim_wrapper.optimizer.state.values()))['exp_avg_sq'] /= 0


@pytest.mark.parametrize(
    'hooks, name',
    [([dict(type='EMAHook')], 'the averaged model module.layers.2.bias'), ([], 'the optimizer exp_avg')],
    ids=['averages', 'optimizer'],
)
def test_averages_and_optimizer(tmp_path, hooks, name):
    """A state that --resume would refuse, or that trains a parameter no more, is no checkpoint either."""
    train(tmp_path, stopped=(f'{name}.* has a NaN or an infinity', 6), custom_hooks=[*hooks, Spoil(bool(hooks))])
    assert finite_checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth']


@pytest.mark.parametrize('what, stops', [('all_reduce', 10), ('all_gather_object', 2)])
def test_all_processes_stop(tmp_path, monkeypatch, what, stops):
    """What another process finds stops this one in the same step."""
    others = dict(all_reduce=lambda steps, _: steps.fill_(10), all_gather_object=lambda found: [found, 'fc.weight'])
    monkeypatch.setattr(divergence, what, others[what])
    train(tmp_path, stopped=('.*', stops), steps=12, checkpoint={} if stops == 2 else NO_CHECKPOINTS)
