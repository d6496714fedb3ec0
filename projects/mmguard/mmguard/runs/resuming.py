"""What a run starts from: the newest whole checkpoint of an interrupted training, and states and weights that fit."""

import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import all_gather_object
from mmengine.hooks import EMAHook, Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, FlexibleRunner, Runner
from torch import Tensor, nn

from ..checks.classes import compare_classes, same_in_other_order, saved_meta
from ..checks.config_types import loads_strictly
from ..checks.datasets import inner_datasets
from ..errors import CheckpointError, InputError, warn
from ..weights import (
    Translation,
    compare_settings,
    log_changes_with_images,
    misfits,
    odd_form,
    plain_names,
    read_file,
    unusable,
    weights_in,
)
from ..weights.files import noted_settings
from .checkpoints import backbone_settings, training_note, unwrapped
from .configs import is_sharded
from .divergence import first_broken

#: keys of the state of a training; a best checkpoint has no optimizer
STATE_KEYS = {'meta', 'state_dict', 'message_hub', 'optimizer'}
#: what changes in the states of optimizers and schedulers while training, beside learning rates and the like
CHANGING = {'params', 'last_step', 'base_values'}


def checkpoint_folders(cfg: Config) -> list[str]:
    """The folders on a disk that a training writes checkpoints to: its work folder, and those by ``out_dir``."""
    folders = [cfg.work_dir]
    for hook in _checkpoint_hooks(cfg):
        folder = hook.get('out_dir')
        if folder and '://' not in str(folder) and not hook.get('backend_args') and not hook.get('file_client_args'):
            # MMEngine adds the name of the work folder.
            folders.append(os.path.join(folder, os.path.basename(cfg.work_dir.rstrip(os.sep))))
    return list({os.path.realpath(folder): folder for folder in folders}.values())


def prepare_resume(cfg: Config, checkpoint: str | None = None, trusted: bool = False) -> dict[str, dict]:
    """Make a training resume from a checkpoint, or from the newest whole one in its folders, if there is any.

    The newest is the one that MMEngine's note ``last_checkpoint`` names, or else the one of most steps. If it is not
    whole, the next older one is taken and the log says so. The seed becomes that of the interrupted training: MMEngine
    sets it too late for the order of the data.

    Args:
        cfg: of the training; ``resume``, ``load_from`` and ``randomness`` are set.
        checkpoint, trusted: see :func:`mmguard.weights.read_file`.

    Returns:
        the state that was read, by the path of its file; empty without a checkpoint, and if it has an address.

    Raises:
        CheckpointError: if the checkpoint, or every one that there is, is missing, damaged or no state of a training.
        InputError: see :func:`check_unused`.
    """
    found, problems = [], []
    for candidates in [[checkpoint]] if checkpoint else _newest_first(cfg):
        for path in candidates:
            try:
                found.append((path, *_read_state(path, cfg, trusted)))
                break
            except CheckpointError as error:
                problems.append(str(error))
    if problems and not found:
        raise CheckpointError(f'{"; ".join(problems)}: nothing to resume from')
    cfg.resume = bool(found)
    if not found:
        check_unused(cfg)
        warn(f'There is no checkpoint to resume from in {cfg.work_dir}: a new training starts.')
        return {}
    cfg.load_from, file, state = max(found, key=lambda one: one[2]['meta'].get('iter', 0))
    for problem in problems:
        warn(f'{problem}: resuming from {cfg.load_from}')
    own_folders = map(os.path.realpath, checkpoint_folders(cfg))
    if checkpoint and os.path.realpath(os.path.dirname(checkpoint)) not in own_folders:
        check_unused(cfg)
    if state['meta'].get('seed') is not None:
        cfg.randomness = {**cfg.get('randomness', {}), 'seed': state['meta']['seed']}
    return {file: state} if file else {}


def check_unused(cfg: Config) -> None:
    """Check that the folders of a training that starts anew hold no checkpoints of another one.

    Raises:
        InputError: naming the folder and a checkpoint. The training would overwrite and remove checkpoints.
    """
    patterns = [*_patterns(cfg), re.compile(r'(backbone_epoch|best)_.+\.pth')]
    for folder in checkpoint_folders(cfg):
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if any(pattern.fullmatch(name) for pattern in patterns):
                raise InputError(
                    f'{folder} has checkpoints of another training, as {name}: continue that one with --resume, or '
                    'give another --work-dir, or remove them'
                )


def _checkpoint_hooks(cfg: Config) -> Iterator[Mapping]:
    hooks = (cfg.get('default_hooks') or {}).get('checkpoint'), *(cfg.get('custom_hooks') or ())
    return (hook for hook in hooks if isinstance(hook, Mapping) and 'CheckpointHook' in str(hook.get('type')))


def _patterns(cfg: Config) -> list[re.Pattern]:
    """Patterns of the names of numbered checkpoints; group 1 is the number."""
    templates = ['epoch_{}.pth', 'iter_{}.pth', *(hook.get('filename_tmpl') for hook in _checkpoint_hooks(cfg))]
    return [re.compile(re.sub(r'\\{.*?\\}', r'(\\d+)', re.escape(name))) for name in dict.fromkeys(templates) if name]


def _newest_first(cfg: Config) -> list[list[str]]:
    """The checkpoint that MMEngine noted, and those of lower numbers; without a note, those of each kind of name."""
    noted = _noted(cfg)
    folders = [os.path.dirname(noted)] if noted else checkpoint_folders(cfg)
    kinds = []
    for pattern in _patterns(cfg):
        numbered = {
            os.path.join(folder, name): int(match[1])
            for folder in folders
            for name in (os.listdir(folder) if os.path.isdir(folder) else ())
            if (match := pattern.fullmatch(name))
        }
        newest_first = sorted(numbered, key=numbered.get, reverse=True)
        if noted in numbered:
            return [newest_first[newest_first.index(noted) :]]
        kinds.append(newest_first)
    return [[noted, *kind] for kind in kinds] if noted else kinds


def has_checkpoint(cfg: Config) -> bool:
    """Whether the folders of a training have a checkpoint to resume from."""
    return any(_newest_first(cfg))


def _noted(cfg: Config) -> str | None:
    """The checkpoint that the note ``last_checkpoint`` names; None if there is no such note or checkpoint."""
    try:
        last = os.fsdecode(Path(cfg.work_dir, 'last_checkpoint').read_bytes()).strip()
    except OSError:  # no file
        return None
    folder, name = os.path.split(last)
    for path in (os.path.join(cfg.work_dir, name), os.path.join(folder, name)):  # The work folder may be a copy.
        if name and os.path.exists(path):
            return path
    return None


def _read_state(path: str, cfg: Config, trusted: bool) -> tuple[str | None, dict]:
    """The state of a training, which must be whole, and sharded if the training is; the file that it is in."""
    if '://' in path:
        return None, dict(meta={})  # MMEngine reads checkpoints at addresses.
    if not os.path.exists(path):
        raise CheckpointError(f'there is no checkpoint {path}')
    file = path
    if is_sharded(cfg):
        if not os.path.isdir(path):
            raise CheckpointError(
                f'sharded training cannot resume from {path}, an ordinary checkpoint: leave out '
                'configs/_base_/fsdp.py, or start a new training from its weights with load_from'
            )
        from .sharding import REST, read_shard_metadata  # imports what only sharded training needs

        read_shard_metadata(path)
        file = os.path.join(path, REST)
    state = read_file(file, trusted=trusted)
    _check_state(state, path)
    return file, state


def _check_state(state: object, source: str) -> None:
    """Check that this is the state of a training, which has not diverged."""
    if not isinstance(state, dict) or not set(state) >= STATE_KEYS:
        raise CheckpointError(
            f'{source} holds no state of a training: to start from its weights, leave out --resume and set load_from'
        )
    broken = first_broken({name: state.get(name) for name in ('state_dict', 'ema_state_dict', 'optimizer')})
    if broken:
        raise CheckpointError(f'{source} has a NaN or an infinity in {broken}: it is of a training that diverged')


class CheckpointCheckHook(Hook):
    """Refuses weights that do not fit the model, and states that do not fit the training, before they are loaded.

    MMEngine would log a warning and go on. Names lose what wrappers add, see :func:`mmguard.weights.plain_names`.

    - A test takes every tensor of the model from the checkpoint.
    - A training takes those that have the right shape; heads may be others. A backbone of mmattn takes all or none.
    - A resumed training takes a state that fits completely: model, averaged model, optimizer, schedulers. It is of the
      same step in all processes.
    - The settings of backbones, which tensors do not show, are compared if the checkpoint has them. The log has the
      differences in :func:`mmguard.runs.checkpoints.training_note`.
    - A test and a resumed training have the classes of the checkpoint in its order, see
      :func:`mmguard.checks.classes.compare_classes`. The log says that a new training has them in another order.

    Raises:
        CheckpointError: naming the checkpoint and what does not fit first.
        InputError: naming a class with another label.
    """

    def after_load_checkpoint(self, runner: Runner, checkpoint: object) -> None:
        source = runner._load_from or 'the checkpoint'
        model = unwrapped(runner.model)
        weights = whole_model_weights(checkpoint, model, source, runner._resume)
        backbones = backbone_settings(model)
        _compare_classes(runner, checkpoint, source)
        if runner._resume:
            _check_state(checkpoint, source)
            checkpoint['meta'].pop('config', None)  # MMEngine would run it as Python; it writes "cfg" today.
            _log_changes(checkpoint['meta'].get('mmattn_training', {}), training_note(runner))
        if isinstance(runner, FlexibleRunner):
            # Each process has only its part of the tensors. ShardedStrategy compares those of a sharded checkpoint.
            if not runner._resume:
                named = plain_names(dict(chain(model.named_parameters(), model.named_buffers())), source)
                # Without use_orig_params, FSDP hides the names of parameters.
                if not any(name.endswith('_flat_param') for name in named):
                    _check_same_model(weights, named, named.keys() & weights, model, source)
            else:
                without = dict(checkpoint, optimizer=dict(checkpoint['optimizer'], state={}))
                _refuse(source, _difference_of_progress(without, runner))
            return
        if not runner._resume and not isinstance(runner._train_loop, BaseLoop):
            check_complete(weights, model, source)
            return
        own = model.state_dict()
        fitting = _fitting(weights, own, source)
        if runner._resume:
            # Backbones of mmattn are strict themselves, and know the layouts of older versions.
            strict = tuple(f'{prefix}{name}.' for prefix in ('', 'module.') for name in backbones)
            difference = (
                _difference_of_weights(weights, own, strict)
                or _difference_of_averages(runner, checkpoint.get('ema_state_dict'), strict, source)
                or _difference_of_progress(checkpoint, runner)
            )
            _refuse(source, difference)
            return
        _check_same_model(weights, own, fitting, model, source)

    def before_train(self, runner: Runner) -> None:
        steps = all_gather_object(runner.iter)
        if len(set(steps)) > 1:
            raise InputError(
                f'the processes start from different steps ({", ".join(map(str, steps))}): --work-dir must be a folder '
                'that all machines share, or --resume must name a checkpoint that all of them have'
            )
        loop = runner.train_loop
        by_epoch = isinstance(loop, EpochBasedTrainLoop)
        done, end = (loop.epoch, loop.max_epochs) if by_epoch else (loop.iter, loop.max_iters)
        what = f'{runner._load_from} is of {"epoch" if by_epoch else "step"} {done}'
        expected = loop.epoch * len(loop.dataloader) if by_epoch else loop.iter
        if loop.iter != expected:
            warn(
                f'{what} and step {loop.iter}, but {loop.epoch} epochs have {expected} steps here: schedules by steps '
                'are not those of an uninterrupted training. Checkpoints of a training by epochs need by_epoch=True, '
                'and --resume the same batch_size'
            )
        if done > end:
            raise InputError(f'{what}, the training ends at {end}: raise {"max_epochs" if by_epoch else "max_iters"}')
        if done == end:
            print_log(f'{what}, the last one: there is nothing left to train.', logger='current')


def _compare_classes(runner: Runner, checkpoint: object, source: str) -> None:
    """Compare the classes of a checkpoint with those of the dataset that it is tested with, or resumed with. A new
    training may have other classes, and the same in another order by mistake, which the log says."""
    saved = [(source, meta.get('classes')) for meta in saved_meta(checkpoint)]
    for split in ('train', 'test'):
        loop = getattr(runner, f'_{split}_loop', None)
        if not isinstance(loop, BaseLoop):  # but a config, of what this run does not do
            continue
        datasets = inner_datasets(loop.dataloader.dataset)
        sources = [(f'{split}_dataloader', each.metainfo.get('classes')) for each in datasets]
        if split == 'test' or runner._resume:
            compare_classes([*saved, *sources])
        elif any(same_in_other_order(one, two) for _, one in saved for _, two in sources):
            warn(f'{source} has the classes of train_dataloader in another order: heads start with those of others')


def _check_same_model(
    weights: Iterable[str], own: Iterable[str], fitting: set[str], model: nn.Module, source: str
) -> None:
    """Check, by the names of tensors, that a training does not start from weights of another model."""
    # Some models, as SoftTeacher, take weights of their parts.
    plain = type(model)._load_from_state_dict is nn.Module._load_from_state_dict
    if plain and not fitting and not backbone_settings(model):
        raise CheckpointError(f'{source} is of another model: it has no tensor of {type(model).__name__}')
    parts, own_parts = ({name.partition('.')[0] for name in names} for names in (weights, own))
    # as those of a classifier and of a detector
    if parts & own_parts == {'backbone'} and {'backbone'} not in (parts, own_parts):
        raise CheckpointError(
            f'{source} is of another model than {type(model).__name__}, with the same backbone: load_from is for '
            "whole models; give it to the backbone, model.backbone.init_cfg=dict(type='Pretrained', checkpoint=...)"
        )


def _refuse(source: str, difference: str) -> None:
    if difference:
        raise CheckpointError(
            f'{source} is the state of another training: {difference}; --resume continues the same model with the same '
            'optimizer, load_from starts a new training from weights'
        )


def whole_model_weights(checkpoint: object, model: nn.Module, source: str, resumes: bool = False) -> dict[str, object]:
    """The weights of a checkpoint of a classifier, detector or segmentor, without what wrappers add to names.

    They become the checkpoint's "state_dict", the entry that MMEngine loads. A released classifier gets the names of
    MMPretrain's.

    Raises:
        CheckpointError: if the checkpoint has none, or if a backbone of mmattn had other settings. Unless a training
            ``resumes``, those that change with the size of the images may differ, and the log names them.
    """
    weights, _ = weights_in(checkpoint)
    if not isinstance(weights, dict):
        raise CheckpointError(f'{source} holds no weights')
    renamed = plain_names(weights, source)
    weights = checkpoint['state_dict'] = copy.copy(weights)  # keeps torch's _metadata
    weights.clear()
    weights.update(renamed)
    noted = noted_settings(checkpoint)
    try:
        for name, settings in backbone_settings(model).items():
            may_differ = () if resumes else log_changes_with_images(noted.get(name), settings)
            compare_settings(noted.get(name), settings, ignored=may_differ)
        # Among OpenMMLab's models with a backbone, only MMPretrain's have a part named "head".
        if loads_strictly(getattr(model, 'backbone', None)) and hasattr(model, 'head'):
            model.backbone.translate_classifier(weights)
    except CheckpointError as error:
        raise CheckpointError(f'{source}: {error}') from None
    return weights


def check_complete(weights: dict[str, object], model: nn.Module, source: str) -> None:
    """Check that weights have every tensor of a model, as it is tested or exported.

    Raises:
        CheckpointError: naming the first tensor that is not there, or that cannot be copied.
    """
    own, translated = model.state_dict(), dict(weights)
    for name, backbone in model.named_modules():
        if loads_strictly(backbone):  # The names may be those of a release.
            given = [key for key in translated if key.startswith(f'{name}.') and not odd_form(translated[key])]
            part = {key.removeprefix(f'{name}.'): translated.pop(key) for key in given}
            try:
                part = backbone.from_release(part).tensors
            except CheckpointError as error:
                raise CheckpointError(f'{source}: {error}') from None
            translated.update((f'{name}.{key}', value) for key, value in part.items())
    for prefix, part in model.named_modules():
        for hook in part._load_state_dict_pre_hooks.values():  # as MMPretrain's, which resize tables and rename tensors
            for tensors in (own, translated):
                hook(tensors, f'{prefix}.' if prefix else '', {}, True, [], [], [])
    fitting = _fitting(translated, own, source)
    absent = [name for name in own if name not in fitting and not name.endswith('num_batches_tracked')]
    if absent:
        raise CheckpointError(
            f'{source} is of another model: {type(model).__name__} has {len(absent)} tensors that are not there, or '
            f'not of that shape, the first being {absent[0]}'
        )
    # The head of a classifier alone: others may leave out auxiliary heads, or masks.
    unused = [name for name in weights if re.fullmatch(r'head\..*(weight|bias)', name) and name not in own]
    if unused and hasattr(model, 'head'):
        raise CheckpointError(
            f'{source} is of another model: its head has {len(unused)} tensors that {type(model.head).__name__} does '
            f'not use, the first being {unused[0]}'
        )


def _fitting(weights: dict, own: dict[str, Tensor], source: str) -> set[str]:
    """The names of the tensors that have the shape of the model's; a value that cannot be copied is refused."""
    fitting = set()
    for name, value in weights.items():
        if name not in own or isinstance(value, Tensor) and value.shape != own[name].shape:
            continue
        problem = unusable(value, own[name])
        if problem:
            raise CheckpointError(f'{source}: {name} is {problem}, so it cannot be copied: use another checkpoint')
        fitting.add(name)
    return fitting


def _difference_of_weights(weights: dict, own: dict[str, Tensor], excused: tuple[str, ...] = ()) -> str:
    """What does not fit first, as part of a sentence, or ''; names that begin with those in ``excused`` all fit."""
    given, own = ({key: each[key] for key in each if not key.startswith(excused)} for each in (weights, own))
    for kind, names in misfits(Translation(given), own).items():
        return f'{len(names)} of its tensors are {kind}, the first being {names[0]}'
    if [name for name in given if name in own] != [name for name in own if name in given]:
        return 'its tensors are in another order'  # which is the order of the optimizer's state
    return ''


def _difference_of_averages(runner: Runner, saved: dict | None, excused: tuple[str, ...], source: str) -> str:
    hook = next((hook for hook in runner.hooks if isinstance(hook, EMAHook)), None)
    if (hook is None) != (saved is None):
        return f'it has {"no" if hook else "an"} averaged model, and the config has {"" if hook else "no "}EMAHook'
    if hook is None:
        return ''
    own = hook.ema_model.state_dict()
    _fitting(saved, own, source)
    return _difference_of_weights(saved, own, excused)


def _difference_of_progress(checkpoint: dict, runner: Runner) -> str:
    schedulers = _difference_of_schedulers(checkpoint.get('param_schedulers'), runner.param_schedulers)
    return schedulers or _difference_of_optimizers(checkpoint['optimizer'], runner.optim_wrapper)


def _difference_of_optimizers(saved: object, wrapper: OptimWrapper | OptimWrapperDict) -> str:
    if isinstance(wrapper, OptimWrapperDict):
        names = list(wrapper.keys())
        if not isinstance(saved, dict) or set(saved) != set(names):
            return f'its optimizers are not those of the config, {", ".join(names)}'
        differences = (_difference_of_optimizers(saved[name], wrapper[name]) for name in names)
        return next(filter(None, differences), '')
    if not isinstance(saved, dict) or not {'state', 'param_groups'} <= set(saved):
        return 'it has no state of a single optimizer'
    groups, own_groups = saved['param_groups'], wrapper.optimizer.param_groups
    sizes, own_sizes = ([len(group['params']) for group in each] for each in (groups, own_groups))
    if sizes != own_sizes:
        what = f'{sum(sizes)} parameters in {len(sizes)} groups'
        return f'its optimizer has {what}, that of the config {sum(own_sizes)} in {len(own_sizes)}'
    parameters = {}
    for group, own_group in zip(groups, own_groups):
        # Versions of torch add flags, which have defaults.
        both = {**group, **own_group}
        differing = [str(key) for key in group.keys() ^ own_group if not isinstance(both[key], (bool, type(None)))]
        if differing:
            return f'only one of its optimizer and that of the config has {", ".join(sorted(differing))}'
        parameters.update(zip(group['params'], own_group['params']))
    for key, state in saved['state'].items():
        own = parameters[key]
        for name, value in state.items():
            if isinstance(value, Tensor) and value.ndim == own.ndim and value.shape != own.shape:
                return f'{name} of its optimizer fits no parameter'
    _log_ignored('the optimizer', *zip(groups, own_groups))
    return ''


def _difference_of_schedulers(saved: object, own: list | dict | None) -> str:
    if isinstance(own, dict):
        if not isinstance(saved, dict) or set(saved) != set(own):
            return f'its schedulers are not those of the config, {", ".join(own)}'
        return next(filter(None, (_difference_of_schedulers(saved[name], own[name]) for name in own)), '')
    saved, own = saved or [], own or []
    if not isinstance(saved, list):
        return 'its schedulers are not those of the config'
    if len(saved) != len(own):
        return f'it has {len(saved)} schedulers, the config {len(own)}'
    for number, (state, scheduler) in enumerate(zip(saved, own)):
        name, own_state = f'param_scheduler {number} ({type(scheduler).__name__})', scheduler.state_dict()
        if set(state) != set(own_state):
            return f'{name} of the config is of another kind than its own'
        _log_ignored(name, (state, own_state))
    return ''


def _log_changes(saved: dict[str, object], own: dict[str, object]) -> None:
    """Warn of settings that a resumed training takes from the config, not from the checkpoint."""
    changed = [f'{key}={own[key]} instead of {saved[key]}' for key in own if key in saved and saved[key] != own[key]]
    if changed:
        warn(f'--resume continues with other settings than those of the checkpoint: {", ".join(changed)}')


def _log_ignored(what: str, *states: tuple[dict, dict]) -> None:
    """Warn of settings that a resumed training takes from the checkpoint (first of a pair), not from the config."""
    ignored = {
        key: f'{key}={saved[key]} instead of {own[key]}'
        for saved, own in states
        for key in own
        if key in saved and str(saved[key]) != str(own[key])
        # The schedule changes lr, and not initial_lr.
        if key not in CHANGING and not key.startswith('_') and f'initial_{key}' not in own
    }
    if ignored:
        warn(f'--resume continues {what} with the settings of the checkpoint: {", ".join(ignored.values())}')
