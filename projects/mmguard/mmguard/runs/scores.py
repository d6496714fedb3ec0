"""What a training decides by the scores of its validations is the same after an interruption."""

from mmengine.hooks import CheckpointHook, EarlyStoppingHook, Hook
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

from ..errors import CheckpointError, warn

#: key of a checkpoint: the step of the last validation in its state, and the state of each EarlyStoppingHook
SCORES = 'scores'


class ScoreHook(Hook):
    """Saves and restores the state of EarlyStoppingHook, and makes up for a validation that a checkpoint lacks.

    MMEngine writes the checkpoint of a step before the validation of that step, and again after it only if the score
    is the best one. A resumed training would leave that validation out: ``save_best``, EarlyStoppingHook and
    schedulers such as ReduceOnPlateauLR would not know its score. If there is any of them, it begins with it.

    Raises:
        CheckpointError: if the saved state of an EarlyStoppingHook is none.
    """

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.validated: int | None = None

    def before_run(self, runner: Runner) -> None:
        for hook in _early_stopping(runner):
            # before CheckpointHook, which writes again after a validation
            runner.hooks.remove(hook)
            runner.register_hook(hook, 'LOW')

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if 'optimizer' in checkpoint:
            stopping = {_name(hook): [float(hook.best_score), hook.wait_count] for hook in _early_stopping(runner)}
            checkpoint[SCORES] = dict(validated=self.validated, stopping=stopping)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        saved = checkpoint.pop(SCORES, dict(validated=None, stopping={}))
        if not runner._resume:
            return
        try:
            self.validated = saved['validated']
            for hook in _early_stopping(runner):
                if _name(hook) in saved['stopping']:
                    best, count = saved['stopping'][_name(hook)]
                    hook.best_score, hook.wait_count = float(best), int(count)
                else:
                    warn(f'{runner._load_from} has no state of EarlyStoppingHook for {_name(hook)}: it begins anew')
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f'{runner._load_from} cannot be resumed: its {SCORES} are no state of EarlyStoppingHook'
            ) from error

    def before_train(self, runner: Runner) -> None:
        if runner._resume and self.validated != runner.iter and _is_validated_now(runner) and _decides(runner):
            print_log(f'The checkpoint lacks the validation of step {runner.iter}: it comes first.', 'current')
            runner.val_loop.run()
        if any(map(_has_stopped, _early_stopping(runner))):
            print_log('EarlyStoppingHook has stopped this training: nothing is left to train.', 'current')
            runner.train_loop.stop_training = True

    def before_val_epoch(self, runner: Runner) -> None:
        self.validated = runner.iter


def _early_stopping(runner: Runner) -> list[EarlyStoppingHook]:
    return [hook for hook in runner.hooks if isinstance(hook, EarlyStoppingHook)]


def _name(hook: EarlyStoppingHook) -> str:
    return f'{hook.monitor} ({hook.rule})'


def _has_stopped(hook: EarlyStoppingHook) -> bool:
    end = hook.stopping_threshold
    return hook.wait_count >= hook.patience or end is not None and hook.rule_map[hook.rule](hook.best_score, end)


def _is_validated_now(runner: Runner) -> bool:
    """Whether the training validates after the step, or the epoch, that it has done."""
    loop = runner.train_loop
    if runner.val_loop is None or not isinstance(loop, (EpochBasedTrainLoop, IterBasedTrainLoop)):
        return False
    loop._decide_current_val_interval()
    by_epoch = isinstance(loop, EpochBasedTrainLoop)
    done, end = (loop.epoch, loop.max_epochs) if by_epoch else (loop.iter, loop.max_iters)
    return done >= max(loop.val_begin, 1) and (done % loop.val_interval == 0 or done == end)


def _decides(runner: Runner) -> bool:
    """Whether a hook or a scheduler looks at scores."""
    schedulers = runner.param_schedulers or []
    every = [one for each in schedulers.values() for one in each] if isinstance(schedulers, dict) else schedulers
    saving = any(isinstance(hook, CheckpointHook) and hook.save_best for hook in runner.hooks)
    return saving or bool(_early_stopping(runner)) or any(getattr(one, 'need_val_args', False) for one in every)
