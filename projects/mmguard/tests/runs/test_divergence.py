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

STOPPED = 'the training has diverged: {}, up to step {}; .*clip_grad'


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
                loss = out['loss'] if self.gradients else out['loss'] * 0
                out['loss'] = loss * self.value if self.gradients else loss + self.value
        return out


def train(folder, *args, **settings):
    runner = build(folder, *args, **settings)
    running._run(runner, runner.train)


def finite_checkpoints(folder):
    """The names of the checkpoints in a folder, all of which must be finite."""
    paths = sorted(folder.glob('*.pth'))
    assert not any(first_broken(torch.load(path, weights_only=False)['state_dict']) for path in paths)
    return [path.name for path in paths]


def test_masks():
    """A mask of attention has infinities, but no NaN."""
    mask = torch.full((3, 3), -torch.inf).triu(1)
    assert not first_broken({'block.causal_mask': mask})
    assert first_broken({'block.causal_mask': mask * 0}) and first_broken({'block.weight': mask})


@pytest.mark.parametrize('hook', ['AtomicCheckpointHook', 'CheckpointHook'])
@pytest.mark.parametrize('by_epoch', [False, True])
def test_last_finite_checkpoint_stays(tmp_path, by_epoch, hook):
    """One NaN breaks all weights. No checkpoint has them, and none is removed for one."""
    options = dict(type=hook, max_keep_ckpts=1, save_best='acc', rule='greater')
    step = 8 if by_epoch else 6
    with pytest.raises(InputError, match=STOPPED.format('layers.0.weight has a NaN or an infinity', step)):
        train(tmp_path, by_epoch, validate=True, checkpoint=options, model=Diverging([5]))
    assert finite_checkpoints(tmp_path) == (['epoch_1.pth'] if by_epoch else ['best_acc_iter_4.pth', 'iter_4.pth'])


def test_best_checkpoint_stays(tmp_path):
    """Broken weights are not evaluated, so they cannot become the best checkpoint."""
    options = dict(interval=-1, save_last=False, save_best='acc', rule='greater')
    with pytest.raises(InputError, match=STOPPED.format('layers.0.weight has .*', 6)):
        train(tmp_path, validate=True, checkpoint=options, model=Diverging([5]))
    assert finite_checkpoints(tmp_path) == ['best_acc_iter_4.pth']


NO_CHECKPOINTS = dict(interval=-1, save_last=False)


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('by_epoch', [False, True])
def test_loss_stays_non_finite(tmp_path, by_epoch, value):
    """The training stops before twenty such steps, also if the weights stay finite."""
    model = Diverging(range(5, 100), value, gradients=False)
    with pytest.raises(InputError, match=STOPPED.format('the loss was NaN or infinite in the last 16 steps', 20)):
        train(tmp_path, by_epoch, steps=40, checkpoint=NO_CHECKPOINTS, model=model)


def test_a_few_steps_may_be_non_finite(tmp_path):
    """Nine in a row that break no weights, several times."""
    model = Diverging({step for step in range(1, 60) if step % 10}, math.inf, gradients=False)
    train(tmp_path, steps=60, checkpoint=NO_CHECKPOINTS, model=model)


@pytest.mark.parametrize('counts, steps', [(1, 16), (4, 12)])
def test_gradient_accumulation(tmp_path, counts, steps):
    """Steps of the loop are counted, not updates of the weights."""
    wrapper = dict(optimizer=dict(type='SGD', lr=0.1), accumulative_counts=counts)
    with pytest.raises(InputError, match=STOPPED.format(f'the loss was .* in the last {steps} steps', 20)):
        train(tmp_path, steps=40, checkpoint=NO_CHECKPOINTS, model=Diverging([5]), optim_wrapper=wrapper)


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


@pytest.mark.parametrize('bad, stops', [(range(5, 85), None), (range(5, 200), 110)])
def test_mixed_precision(tmp_path, monkeypatch, bad, stops):
    """Steps that the scaler skips do not stop a training, unless there is nothing else any more."""
    monkeypatch.setattr(amp_optimizer_wrapper, 'is_cuda_available', lambda: True)
    monkeypatch.setattr(amp_optimizer_wrapper, 'GradScaler', Scaler)
    wrapper = dict(type='AmpOptimWrapper', dtype='bfloat16', optimizer=dict(type='SGD', lr=0.001))
    settings = dict(steps=120, model=Diverging(bad), optim_wrapper=wrapper, checkpoint=dict(interval=60))
    if stops:
        with pytest.raises(InputError, match=STOPPED.format('the loss was .* in the last 106 steps', stops)):
            train(tmp_path, **settings)
    else:
        train(tmp_path, **settings)
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
    'averages, name', [(True, 'the averaged model module.layers.2.bias'), (False, 'the optimizer exp_avg')]
)
def test_averages_and_optimizer(tmp_path, averages, name):
    """A state that --resume would refuse, or that trains a parameter no more, is no checkpoint either."""
    hooks = [*([dict(type='EMAHook')] if averages else []), Spoil(averages)]
    with pytest.raises(InputError, match=STOPPED.format(f'{name}.* has a NaN or an infinity', 6)):
        train(tmp_path, custom_hooks=hooks)
    assert finite_checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth']


@pytest.mark.parametrize('what, stops', [('all_reduce', 10), ('all_gather_object', 2)])
def test_all_processes_stop(tmp_path, monkeypatch, what, stops):
    """What another process finds stops this one in the same step."""
    others = dict(all_reduce=lambda steps, _: steps.fill_(10), all_gather_object=lambda found: [found, 'fc.weight'])
    monkeypatch.setattr(divergence, what, others[what])
    with pytest.raises(InputError, match=STOPPED.format('.*', stops)):
        train(tmp_path, steps=12, checkpoint={} if stops == 2 else NO_CHECKPOINTS)


def test_two_models_and_optimizers():
    """Optimizers by name, and tensors that are no numbers with fractions."""
    assert first_broken(dict(a=nn.Linear(1, 1).state_dict(), b=[torch.ones(1, dtype=torch.long), 3, None])) == ''
    assert first_broken(dict(a=[dict(x=torch.tensor(math.nan))])) == 'a x'
