"""A training that stops, or chooses its best checkpoint, by scores does the same if it is interrupted and resumed."""

import pytest
import torch
from mmengine.evaluator import BaseMetric

from mmguard.runs.scores import SCORES, ScoreHook
from mmguard.weights import CheckpointError

from .small_training import Killed, build


class Scores(BaseMetric):
    """The scores of the validations at steps 2, 4, 6 and 8; the training is killed in that of a step."""

    def __init__(self, values, killed):
        super().__init__()
        self.values, self.killed, self.steps = values, killed, []

    def process(self, data_batch, data_samples):
        self.results.append(None)

    def compute_metrics(self, results):
        step = self.runner.iter
        self.steps.append(step)
        if step == self.killed:
            raise Killed
        return dict(acc=self.values[step // 2 - 1])


PATIENT = dict(type='EarlyStoppingHook', monitor='acc', rule='greater', min_delta=0, patience=2)
PLATEAU = dict(type='ReduceOnPlateauLR', monitor='acc', rule='greater', patience=0, by_epoch=True)


def run(folder, values=(3.0, 2.0, 1.0, 0.0), killed=False, in_validation=None, stopping=PATIENT, **settings):
    """A training of at most 8 steps. Its metric says which steps were validated."""
    metric = Scores(values, in_validation)
    runner = build(
        folder,
        seed=0,
        validate=True,
        killed=killed,
        custom_hooks=[stopping, ScoreHook()],
        **{'param_scheduler': PLATEAU, **settings, 'val_evaluator': [metric]},
    )
    metric.runner = runner
    if killed:
        with pytest.raises(Killed):
            runner.train()
    else:
        runner.train()
    return runner, metric.steps


@pytest.mark.parametrize(
    'values, steps, save_best, in_validation',
    [
        ((3.0, 2.0, 1.0, 0.0), 6, None, None),
        ((3.0, 2.0, 1.0, 0.0), 6, 'acc', 4),
        ((1.0, 2.0, 2.0, 2.0), 8, 'acc', None),
    ],
    ids=['worse', 'worse in validation', 'best'],
)
def test_ends_as_if_uninterrupted(tmp_path, values, steps, save_best, in_validation):
    """The training is interrupted in the validation of step 4, or after it: steps, learning rates, weights and names of
    checkpoints are those of one in one go. MMEngine's state is that before this validation, unless it is the best."""
    settings = dict(values=values, checkpoint=dict(save_best=save_best, rule='greater' if save_best else None))
    whole, _ = run(tmp_path / 'whole', **settings)
    run(tmp_path / 'parts', killed=True, in_validation=in_validation, **settings)
    resumed, validated = run(tmp_path / 'parts', **settings)
    assert whole.iter == resumed.iter == steps
    in_state = save_best and not in_validation and steps == 8
    assert (validated[0] == 6) == bool(in_state)  # what the state has is not done twice
    assert resumed.optim_wrapper.get_lr() == whole.optim_wrapper.get_lr()
    own, expected = resumed.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(own[name], value) for name, value in expected.items())
    names = [sorted(path.name for path in (tmp_path / name).glob('*.pth')) for name in ('parts', 'whole')]
    assert names[0] == names[1]


def test_last_validation(tmp_path):
    """A training by epochs is interrupted in it: nothing is left to train, but its best checkpoint is found."""
    settings = dict(by_epoch=True, checkpoint=dict(save_best='acc', rule='greater'), param_scheduler=[])
    with pytest.raises(Killed):
        run(tmp_path, in_validation=8, **settings)
    assert run(tmp_path, **settings)[1] == [8] and (tmp_path / 'best_acc_epoch_2.pth').exists()


def test_stopped_training_is_resumed(tmp_path):
    """It is over, also if its last checkpoint was written after the last validation; with more patience, it goes on."""
    stopping = dict(PATIENT, min_delta=10, patience=1)
    settings = dict(checkpoint=dict(save_best='acc', rule='greater'), values=(1.0, 2.0, 3.0, 4.0))
    assert run(tmp_path, stopping=stopping, **settings)[0].iter == 4
    assert run(tmp_path, stopping=stopping, **settings)[0].iter == 4
    assert run(tmp_path, stopping=dict(stopping, patience=2), **settings)[0].iter == 6


def test_validation_is_left_out(tmp_path):
    """Nothing looks at its score."""
    settings = dict(stopping=dict(type='EmptyCacheHook'), param_scheduler=[])
    run(tmp_path, killed=True, **settings)
    assert run(tmp_path, **settings)[1] == [6, 8]


@pytest.mark.parametrize(
    'scores', [{}, dict(validated=4, stopping=dict.fromkeys(['acc (greater)'], 'x'))], ids=['empty', 'text']
)
def test_odd_state(tmp_path, scores):
    """It is refused, with the name of the checkpoint."""
    run(tmp_path, killed=True)
    torch.save(torch.load(tmp_path / 'iter_4.pth', weights_only=False) | {SCORES: scores}, tmp_path / 'iter_4.pth')
    with pytest.raises(CheckpointError, match=r'iter_4.pth cannot be resumed: its scores'):
        run(tmp_path)


def test_state_is_missing(tmp_path, capsys):
    """As in a checkpoint of MMEngine's own tools: the training goes on, and the log says so."""
    run(tmp_path, killed=True)
    state = torch.load(tmp_path / 'iter_4.pth', weights_only=False)
    del state[SCORES]
    torch.save(state, tmp_path / 'iter_4.pth')
    run(tmp_path)
    assert 'iter_4.pth has no state of EarlyStoppingHook for acc (greater): it begins anew' in capsys.readouterr().out
