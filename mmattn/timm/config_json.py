"""Folders of the Hugging Face Hub: what config.json may say of a model, and whether it says all of it.

The file comes from anyone. It can name a model of :mod:`mmattn.timm`, registered token mixers, numbers and words; it
can name no file and no code.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from numbers import Real
from pathlib import Path

from timm.models import PretrainedCfg
from torch import nn

from ..backbones.base import Backbone
from ..errors import CheckpointError, describe, near_misses
from ..layers import DropPath
from ..weights.downloads import HUB_FILES, shortened
from ..weights.shards import files_of_index, is_index

#: the largest number, the longest list and the deepest nesting of a setting
MOST_NUMBER, MOST_ENTRIES, MOST_LEVELS = 10**6, 1000, 6
#: the most blocks, and convolutions of the stem; and the most numbers of a model that is built without weights, and
#: beside its weights, whose file has a byte or more for each of the others
MOST_BLOCKS, MOST_VALUES, MOST_BUFFERS = 1000, 2**32, 2**26
#: the arguments of a model beside those of its backbone
OF_MODEL = ('num_classes', 'in_chans', 'global_pool', 'drop_rate', 'proj_drop_rate')
#: the arguments of a backbone that a file cannot set: they name files or code, or are those of the model
NOT_OF_FILES = ('init_cfg', 'in_channels', 'out_indices')
#: keys of timm's PretrainedCfg that say which weights are read, and how
OF_SOURCE = ('url', 'file', 'state_dict', 'hf_hub_id', 'hf_hub_filename', 'source', 'custom_load', 'label_offset')
#: keys of timm's PretrainedCfg, with an example of what decides something; None: a label, a licence or the like
EXAMPLES = {**asdict(PretrainedCfg()), **dict.fromkeys(('test_input_size', 'min_input_size'), (3, 224, 224))}


def read_config(text: str | bytes, source: str) -> tuple[str, dict, dict]:
    """The name of a model, ``model_args`` and ``pretrained_cfg`` of a config.json. What is in these is not checked yet.

    Args:
        source: names the file in the sentence.

    Raises:
        CheckpointError: if it cannot be read.
    """
    try:
        contents = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f'{source} cannot be read: {describe(error)}') from error
    contents = contents if isinstance(contents, dict) else {}
    architecture = contents.get('architecture')
    parts = [contents.get(key, {}) for key in ('model_args', 'pretrained_cfg')]
    if not isinstance(architecture, str) or not all(isinstance(part, dict) for part in parts):
        raise CheckpointError(
            f'{source} cannot be read: it must have architecture, the name of a model, and the dicts model_args and '
            'pretrained_cfg'
        )
    return architecture, *parts


def weights_of(folder: Path) -> Path:
    """The file of weights in a folder.

    Raises:
        CheckpointError: if there is none.
    """
    for name in HUB_FILES:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f'{folder} has no weights: {" or ".join(HUB_FILES)}')


def _size(weights: Path) -> int:
    """The bytes of a file of weights, or of all that an index names."""
    files = files_of_index(weights, str(weights)) if is_index(weights) else [weights.name]
    return sum((weights.parent / name).stat().st_size for name in files if (weights.parent / name).is_file())


def check_saved(
    cls: type[Backbone], model_args: Mapping[str, object], pretrained_cfg: Mapping[str, object], source: str
) -> None:
    """Check the arguments of a model and timm's ``pretrained_cfg`` from a file. timm may have set in the second where
    it has found the file.

    Args:
        cls: the class of its backbone.
        source: names the file in the sentence.

    Raises:
        CheckpointError: naming the argument or the key.
    """
    known = set(OF_MODEL)
    for base in cls.__mro__[: cls.__mro__.index(Backbone)]:
        known.update(inspect.signature(base).parameters)
    known -= {*NOT_OF_FILES, 'kwargs'}
    for key, value in model_args.items():
        if key not in known:
            raise CheckpointError(f'{source}: model_args cannot set {key[:100]}{near_misses(key, known)}')
        check_setting(f'{source}: {key}', value)
    of_timm = ('source', 'hf_hub_id' if pretrained_cfg.get('source') == 'hf-hub' else 'file')
    for key, value in pretrained_cfg.items():
        if key not in EXAMPLES:
            raise CheckpointError(f'{source}: pretrained_cfg has no key {key[:100]}{near_misses(key, EXAMPLES)}')
        example = EXAMPLES[key]
        if key in of_timm or value is None:
            continue
        if key in OF_SOURCE and value:
            raise CheckpointError(f'{source}: pretrained_cfg cannot set {key}: the weights are those beside it')
        if example is not None:
            check_setting(f'{source}: {key}', value)
            if not _is_like(value, example) or example == (3, 224, 224) and len(value) != 3:
                raise CheckpointError(f'{source}: {key} must be like {example!r}, not {repr(value)[:100]}')


def _is_like(value: object, example: object) -> bool:
    """Whether a value is of the kind of an example: a text, True or False, a whole number, a number, or a list."""
    if isinstance(example, tuple):
        return isinstance(value, (list, tuple)) and bool(value) and all(_is_like(one, example[0]) for one in value)
    kind = Real if isinstance(example, float) else type(example)
    return isinstance(value, kind) and isinstance(value, bool) == isinstance(example, bool)


def check_setting(name: str, value: object, level: int = 0) -> None:
    """Check a setting from a file.

    It may be a number up to ``MOST_NUMBER``, a word, True, False, None, or a list or dict of these. A word has no slash
    and no colon, so it is no path and no address.

    Raises:
        CheckpointError: naming the setting.
    """
    if isinstance(value, (list, tuple, dict)):
        if level == MOST_LEVELS or len(value) > MOST_ENTRIES:
            raise CheckpointError(f'{name} has more entries or levels than a setting of a model')
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            check_setting(f'{name}[{repr(key)[:100]}]', inner, level + 1)
    elif isinstance(value, str):
        if not re.fullmatch(r'[\w .,=+-]{0,100}', value):
            raise CheckpointError(f'{name} must be a word, not {repr(value)[:100]}: a setting names no file')
    elif isinstance(value, Real):
        if not abs(value) <= MOST_NUMBER:
            raise CheckpointError(f'{name} must be a number up to {MOST_NUMBER}, not {repr(value)[:100]}')
    elif value is not None:
        raise CheckpointError(f'{name} must be a number or a word, not of type {type(value).__name__}')


def build_saved(
    model: Callable[..., nn.Module],
    cls: type[Backbone],
    source: str,
    weights: Path | None,
    saved_classes: int,
    /,
    **arguments: object,
) -> nn.Module:
    """Build a model from arguments that come from a file, if it can be built and is not larger than its weights.

    Args:
        model: builds it.
        cls: the class of its backbone.
        source: names the file in the sentence.
        weights: file to load; None: none.
        saved_classes: number of classes in the file. A model with as many takes the head, too.
        arguments: of ``model``, with the architecture.

    Raises:
        CheckpointError: if the arguments describe no model, or the weights do not fit.
    """
    try:
        arch = cls.resolve_arch(arguments[cls.arch_argument])
        loops = [arch.get('depth'), *arch.get('depths', ()), arch.get('stem_convs'), arguments.get('stem_convs')]
        if sum(number for number in loops if isinstance(number, int)) > MOST_BLOCKS:
            raise ValueError(f'it has more than {MOST_BLOCKS} blocks')
        empty = model(**{**arguments, 'device': 'meta', 'init_cfg': {}})
    except CheckpointError:
        raise
    except Exception as error:  # of the layer that cannot be built: many kinds
        raise CheckpointError(f'{source} describes no model that can be built: {shortened(describe(error))}') from error
    count = sum(value.numel() for value in (*empty.parameters(), *empty.buffers()))
    if count > (MOST_VALUES if weights is None else _size(weights) + MOST_BUFFERS):
        than = f'{weights} has' if weights else 'is built without weights'
        raise CheckpointError(f'{source} describes a model of {count} numbers, more than {than}')
    built = model(**arguments)
    if weights:
        built.load_pretrained(weights, whole_head=built.num_classes == saved_classes)
    return built


def forms(model: nn.Module) -> dict[str, str]:
    """What a model computes, but for the values of its tensors: settings, modules and tensors by name. Rates of dropout
    are not in it: they are no part of a trained model."""
    found = {f'the setting {name}': repr(value) for name, value in model.backbone.settings_note.items()}
    for name, module in model.named_modules():
        kind = type(module).__name__.replace('SyncBatchNorm', 'BatchNorm2d')
        drops = isinstance(module, (nn.Identity, nn.Dropout, DropPath))
        found[name] = 'nothing' if drops else f'{kind}({module.extra_repr()})'
    found.update((name, f'a tensor {tuple(value.shape)}') for name, value in model.state_dict().items())
    return found
