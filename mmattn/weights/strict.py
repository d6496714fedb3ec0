"""Loading weights completely or not at all: released ones, those of whole models, and the module's own."""

import functools
import inspect
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mmengine.logging import print_log
from mmengine.model import BaseModule
from mmengine.model.weight_init import PretrainedInit
from torch import Tensor, nn

from ..errors import CheckpointError, near_misses
from ..privacy import without_secrets
from .channels import WAYS, fitted, other_channels
from .files import plain_names, read_checkpoint, weights_in
from .first_pass import log_difference
from .lora import lora_part
from .sources import check_source
from .translation import (
    Translation,
    changed_with_images,
    check_floats,
    compare_settings,
    first_names,
    listed,
    misfits,
    odd_form,
    unusable,
)


def is_pretrained(init_cfg: Mapping[str, object]) -> bool:
    """Whether an entry of ``init_cfg`` loads weights. In new-style configs, its type is MMEngine's class."""
    kind = init_cfg.get('type')
    if isinstance(kind, str):  # 'mmengine.Pretrained', or what MMEngine writes for the class
        return kind.rpartition('.')[2] in ('Pretrained', 'PretrainedInit')
    return isinstance(kind, type) and issubclass(kind, PretrainedInit)


def split_init_cfg(init_cfg: object) -> tuple[list[dict], list[dict]]:
    """The entries of an ``init_cfg`` for MMEngine's ``initialize``, and the arguments of
    :meth:`StrictModule.load_pretrained` of those that load weights.

    Raises:
        CheckpointError: if weights are not there, see :func:`mmattn.weights.check_source`.
    """
    initial, pretrained = [], []
    for entry in _entries(init_cfg):
        if not is_pretrained(entry):
            initial.append(entry)
            continue
        check_source(entry['checkpoint'])
        pretrained.append({key: value for key, value in entry.items() if key != 'type'})
    return initial, pretrained


def log_changes_with_images(saved: object, own: Mapping[str, object]) -> dict[str, str]:
    """The settings that :func:`changed_with_images` finds, which the log names."""
    changed = changed_with_images(saved, own)
    if changed:
        print_log(f'{own["type"]}: the weights were trained with {", ".join(changed.values())}', logger='current')
    return changed


class StrictModule(BaseModule):
    """Base class of modules that load strictly, take released checkpoints, and note their settings in their own.

    Weights that do not fit completely are refused, whether ``init_cfg`` loads them, ``load_from`` as part of a
    classifier, detector or segmentor, or ``load_state_dict``. ``load_state_dict(..., strict=False)`` of the module or
    of a whole model takes what fits and logs the rest; weights in another layout must be complete. A classifier of
    MMPretrain whose backbone it is takes a released classifier, head included, as it is.

    A subclass sets ``settings`` and can be built on the device "meta". If it takes checkpoints of other layouts, its
    attribute ``weights`` is the Python module that holds all about them. That module has, where it is needed:

    - ``read(state_dict, model, warm_start)``, which translates a checkpoint to the model's own names and leaves one of
      the model itself as it is. With ``warm_start``, the tensors are of ``SOURCE``; those that it can neither place nor
      expects stay in ``Translation.tensors`` under the names that they had. It raises a KeyError, naming a tensor
      that a warm start lacks, or a CheckpointError.
    - ``source_config(state_dict, model)``, a config for ``MODELS.build`` of the model of ``SOURCE`` that the weights
      were trained as, with maps of the same shapes; None if there is none to compare with. It raises a CheckpointError
      that says why the first pass cannot be compared.
    - ``SOURCE``, a description, of any module's ``LAYOUTS``, of the checkpoints that a warm start takes; and
      ``RECOGNISED = True`` if loading takes them without ``warm_start``, too.
    - ``LAYOUTS``, from the description of a kind of checkpoint to a regular expression for the names in it, for
      messages about weights that do not fit.
    - ``RELEASES``, from a regular expression for the names of weights on Google Drive to their files and the page with
      the links, for messages.
    - ``HEAD_NAMES``, from the prefix of the head's names in a released classifier to MMPretrain's; the first match
      counts. By default 'head.' becomes 'head.fc.'.

    Args:
        init_cfg: MMEngine's initialisation config. ``dict(type='Pretrained', checkpoint=...)`` takes a released file as
            it is; its further keys are the arguments of :meth:`load_pretrained`.

    Attributes:
        settings: the arguments that change the results, but not the names and shapes of tensors, as plain Python
            values. Checkpoints keep them, and loading compares them.

    Raises:
        ValueError: if ``init_cfg`` is wrong; the message says what.
    """

    weights: object = None
    settings: dict[str, object] = {}
    #: of the images, where ``stem_tensors`` see some
    in_channels = 0

    def __new__(cls, *_: object, **arguments: object) -> 'StrictModule':
        if arguments.get('pretrained') is not None:  # A segmentor of MMSegmentation gives its own to the backbone.
            raise ValueError(
                f'{cls.__name__} has no argument pretrained: set '
                "init_cfg=dict(type='Pretrained', checkpoint=...) of the backbone, and pretrained=None in a segmentor"
            )
        return super().__new__(cls)

    def __init__(self, init_cfg: dict | list[dict] | None = None) -> None:
        _check_init_cfg(init_cfg)
        super().__init__(init_cfg or None)  # A config that deletes the init_cfg of its base has {}.

    @classmethod
    def variants(cls) -> Iterator[tuple[str, 'StrictModule']]:
        """The variants to recognise in weights that do not fit: how each is built, and the module without values."""
        return iter(())

    @classmethod
    def published(cls, name: str, otherwise: object = None) -> object:
        """What ``weights`` says under a name."""
        return getattr(cls.weights, name, otherwise)

    @property
    def settings_note(self) -> dict[str, object]:
        """Type and ``settings``, as checkpoints keep them."""
        return self.read_settings(dict(type=type(self).__name__, **self.settings))

    @staticmethod
    def read_settings(note: dict[str, object]) -> dict[str, object]:
        """A note of any version of the class, a file's or its own, in the words of today. Settings with which modules
        compute the same may become one. A file's may have any keys and values."""
        return note

    def init_weights(self) -> None:
        """Initialise as ``init_cfg`` says. Pretrained weights are loaded last, and strictly."""
        if self.is_init:
            return
        init_cfg = self.init_cfg
        self.init_cfg, pretrained = split_init_cfg(init_cfg)
        super().init_weights()
        self.init_cfg = init_cfg
        for arguments in pretrained:
            self.load_pretrained(**arguments)

    def load_pretrained(
        self,
        checkpoint: str | Path,
        prefix: str | None = None,
        strict: bool = True,
        map_location: str = 'cpu',
        warm_start: bool = False,
        in_channels: str | None = None,
    ) -> None:
        """Load a checkpoint, as ``init_cfg=dict(type='Pretrained', checkpoint=...)`` does.

        Args:
            checkpoint: see :func:`mmattn.weights.read_checkpoint`.
            prefix: see :func:`mmattn.weights.read_checkpoint`.
            strict: refuse the checkpoint if a tensor is missing, is of another shape or kind or is not used, or if the
                module that wrote it had other ``settings``. Those that are meant to change with the size of the images
                may differ, and the log names them. Of a warm start, only settings are compared that the module shares
                with the other architecture, such as the number of heads.
            map_location: has no effect, since tensors are read on the CPU; MMEngine's configs may set it.
            warm_start: take weights of the architecture ``SOURCE`` of ``weights``. The log says which tensors are
                taken, which keep their initial values and which have no place, and by how much the first pass differs
                from that of the architecture, see :func:`~.first_pass.log_difference`.
            in_channels: 'zero', 'mean' or 'repeat' takes weights for images of another number of channels, most often
                three. Filters of further channels are zero, the mean of the others, or theirs in turn, see
                :func:`mmattn.weights.channels.fitted`. By default, such weights are refused. If ``init_cfg`` has it,
                it also holds for whole models, such as those of ``load_from``.

        Raises:
            CheckpointError: if the file cannot be read, or its tensors do not fit.
        """
        state_dict, source, settings = read_checkpoint(checkpoint, prefix)
        shown = without_secrets(checkpoint)
        print_log(f'{type(self).__name__}: loading {shown} ({source})', logger='current')
        own = self.settings_note
        changed = log_changes_with_images(settings, own)
        try:
            if in_channels is not None:
                state_dict = self._with_channels(state_dict, warm_start, in_channels)
            if not warm_start:
                with _warned_if(not strict):
                    compare_settings(settings, own, ignored=changed)
            self.load_state_dict(self._warm_started(state_dict) if warm_start else state_dict, strict=strict)
            if warm_start or self.published('RECOGNISED'):
                with _warned_if(not strict):
                    log_difference(self, state_dict, settings)
        except CheckpointError as error:
            raise CheckpointError(f'{shown}: {error}') from None

    @property
    def stem_tensors(self) -> list[str]:
        """Names of the tensors among which are those that see the image."""
        return []

    def _other_channels(self, given: dict[str, Tensor], warm_start: bool = False) -> dict[str, int]:
        """See :func:`mmattn.weights.channels.other_channels`."""
        stem = self.stem_tensors
        try:
            translated = self.from_release(given, warm_start).tensors if stem else {}
        except (CheckpointError, KeyError):
            return {}  # Loading refuses them.
        return other_channels(given, translated, self.state_dict(), stem, self.in_channels) if stem else {}

    def _with_channels(self, given: dict[str, Tensor], warm_start: bool, way: str) -> dict[str, Tensor]:
        """A checkpoint with filters for the images of the module."""
        numbers, name = self._other_channels(given, warm_start), type(self).__name__
        changed = {key: fitted(key, given[key], number, self.in_channels, way) for key, number in numbers.items()}
        what = f'fits {first_names(changed)}' if changed else 'changes nothing'
        print_log(f'{name}: in_channels={way!r} {what}', logger='current')
        return {**given, **changed}

    def start_from(self, state_dict: dict[str, Tensor]) -> None:
        """Start from weights of another architecture in memory, as :meth:`load_pretrained` does from a file.

        Raises:
            CheckpointError: if they are of another architecture.
        """
        self.load_state_dict(self._warm_started(state_dict))

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: object) -> None:
        """Translate the module's part of a state dict, in place, before torch copies tensors. torch's and MMEngine's
        loaders of whole models come here, too.

        Raises:
            CheckpointError: unless ``load_state_dict`` has strict=False, naming the tensors that do not fit, and a
                likely cause.
        """
        given = {key.removeprefix(prefix): state_dict.pop(key) for key in list(state_dict) if key.startswith(prefix)}
        taken = self._fitting(given, prefix, _loads_strictly())
        state_dict.update((prefix + key, value) for key, value in taken.items())
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _fitting(self, given: dict[str, object], prefix: str, strict: bool) -> dict[str, Tensor]:
        """The tensors of a checkpoint, translated; without those of another shape or kind.

        Raises:
            CheckpointError: if strict, and a tensor does not fit.
        """
        name = type(self).__name__
        given = plain_names(given, 'the state dict')
        odd = [f'{key} ({form})' for key, value in given.items() if (form := odd_form(value))]
        given = {key: value for key, value in given.items() if not odd_form(value)}
        ways = (entry.get('in_channels') for entry in _entries(self.init_cfg) if is_pretrained(entry))
        if (way := next(filter(None, ways), None)) and self._other_channels(given):
            given = self._with_channels(given, False, way)
        own = self.state_dict()
        if part := lora_part(own, given):
            own, translation = part, Translation(given)
        else:
            translation = self.from_release(given)
        problems = misfits(translation, own)
        if odd:
            problems['no ordinary tensors'] = odd
        if problems:
            cause = self._likely_cause(given, prefix)
            message = f'the weights do not fit {name}: {cause}. Tensors {listed(problems)}'
            if strict:
                raise CheckpointError(message)
            print_log(message, logger='current', level=logging.WARNING)
        for what, names in (('left out', translation.dropped), ('start untrained', translation.fresh)):
            if names:
                print_log(f'{name}: {what}: {", ".join(names)}', logger='current')
        taken = {
            key: value
            for key, value in translation.tensors.items()
            if key not in own or value.shape == own[key].shape and not unusable(value, own[key])
        }
        taken.update((name, own[name]) for name in translation.fresh)
        if translation.initial is not None:
            taken.update(translation.initial({key: taken.get(key, own[key]) for key in own}))
        return taken

    def from_release(self, state_dict: dict[str, Tensor], warm_start: bool = False) -> Translation:
        """Translate a checkpoint into the module's own names, as ``read`` of ``weights`` does.

        Args:
            state_dict: tensors of a release or of the module itself; it is not changed.
            warm_start: the tensors are of another architecture instead.

        Raises:
            CheckpointError: if the module has no warm start, or a tensor has another shape.
            KeyError: if a warm start lacks a tensor; it names the tensor.
        """
        if warm_start and self.published('SOURCE') is None:
            raise CheckpointError(
                f'{type(self).__name__} has no warm start from other architectures: leave warm_start out'
            )
        tensors, read = dict(state_dict), self.published('read')
        if not warm_start:
            for name, part in self.named_modules():
                if hasattr(part, 'rename_tensors'):
                    part.rename_tensors(tensors, f'{name}.')
        return Translation(tensors) if read is None else read(tensors, self, warm_start)

    def translate_classifier(self, state_dict: dict[str, object], prefix: str = '') -> None:
        """Rename the tensors of a released classifier, in place, to those of an ``ImageClassifier`` of MMPretrain.

        Weights of an ``ImageClassifier`` stay as they are.

        Args:
            state_dict: of the release, or all contents of its file.
            prefix: of the classifier's names in the state dict.

        Raises:
            CheckpointError: if the weights are those of a backbone without a head.
        """
        given = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        weights, container = weights_in(given)
        tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
        tensors = plain_names(tensors, 'the state dict')
        if not any(name.startswith('backbone.') for name in tensors):
            tensors = {self._name_in_classifier(name): value for name, value in tensors.items()}
            if tensors and not any(name.startswith('head.') for name in tensors):
                raise CheckpointError(
                    f'the weights are those of {type(self).__name__} without the head of a classifier, '
                    f'{" or ".join(f"{name}*" for name in self._head_names)}: init_cfg=dict(type="Pretrained", '
                    'checkpoint=...) of the backbone takes them'
                )
        elif not container:
            return
        for name in given:
            del state_dict[prefix + name]
        state_dict.update((prefix + name, value) for name, value in tensors.items())

    def _checkpoint_filter(self, state_dict: dict[str, object], prefix: str, *_: object) -> None:
        """The pre-hook that an ``ImageClassifier`` of MMPretrain takes from its backbone, by this name."""
        with _warned_if(not _loads_strictly()):
            self.translate_classifier(state_dict, prefix)

    @property
    def _head_names(self) -> dict[str, str]:
        return self.published('HEAD_NAMES', {'head.': 'head.fc.'})

    def _name_in_classifier(self, name: str) -> str:
        for start, new in self._head_names.items():
            if name.startswith(start):
                return new + name.removeprefix(start)
        return f'backbone.{name}'

    def _warm_started(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """The module's state dict, updated with what weights of another architecture have for it.

        Raises:
            CheckpointError: if the weights are of another architecture.
        """
        name, source = type(self).__name__, self.published('SOURCE')
        check_floats(given)
        own = self.state_dict()
        try:
            translation = self.from_release(given, warm_start=True)
            unknown = misfits(translation, own).get('not used', [])
            problem = f'have {len(unknown)} tensors that it does not know ({first_names(unknown)})' if unknown else ''
        except KeyError as error:
            problem = f'lack {error}'
        except CheckpointError as error:
            if source is None:
                raise
            problem = f'do not fit: {error}'
        if problem:
            raise CheckpointError(
                f'{name} can start from {source}, but these weights {problem}: '
                f'{self._likely_cause(given, warm_start=True)}'
            )
        if self.published('RECOGNISED'):
            return given
        taken = translation.tensors
        for what, names in (
            ('taken', list(taken)),
            ('keep their initial values', [tensor for tensor in own if tensor not in taken]),
            ('left out', translation.dropped),
        ):
            print_log(f'{name}, warm start: {what}: {", ".join(names) or "nothing"}', logger='current')
        return {**own, **taken}

    def _likely_cause(self, given: dict[str, Tensor], prefix: str = '', warm_start: bool = False) -> str:
        """Why tensors do not fit, or cannot be started from, as part of a sentence."""
        if not given:
            return (
                f'the checkpoint has no tensor under "{prefix}"; ImageNet weights are given by '
                'init_cfg=dict(type="Pretrained", checkpoint=...) of the backbone, not by load_from'
            )
        for number in self._other_channels(given, warm_start).values():
            return (
                f'they are for images of {number} channels, not {self.in_channels}: in_channels="zero", "mean" or '
                '"repeat" beside the checkpoint in init_cfg of the backbone fits them, also those of load_from'
            )
        for description, variant in _variants(type(self)):
            if _fits(variant, given):
                return f'they are those of {description} with its default arguments'
        own = self.state_dict()
        last = list(own)[-1]
        for name in given:
            place = name.removesuffix(last)
            inside = {key.removeprefix(place): value for key, value in given.items() if key.startswith(place)}
            if name.endswith(f'.{last}') and _fits(self, inside):
                return f'they are under "{place}": give this as prefix beside the checkpoint'
        return self._looks_like(given, own, warm_start)

    def _looks_like(self, given: dict[str, Tensor], own: Mapping[str, Tensor], warm_start: bool) -> str:
        """What weights look like by the names of their tensors, as part of a sentence."""
        layouts = _known_layouts()
        families = [each for each, pattern in layouts.items() if any(re.match(pattern, name) for name in own)]
        for description, pattern in layouts.items():
            if any(re.search(rf'(^|\.)({pattern})', name) for name in given):
                of_source = description == self.published('SOURCE')
                if of_source and not warm_start:  # whose names may be among the own ones
                    same = families == [description] and not self._can_start(given, own)
                else:
                    same = of_source or description in families
                if same:
                    return 'they are of another architecture of the same family'
                if of_source:
                    return f'they look like {description}; warm_start=True beside the checkpoint takes a part of them'
                return f'they look like {description}'
        return 'they look like another model'

    def _can_start(self, given: dict[str, Tensor], own: Mapping[str, Tensor]) -> bool:
        """Whether a warm start takes these weights."""
        try:
            return not misfits(self.from_release(given, warm_start=True), own).keys() - {'missing'}
        except (CheckpointError, KeyError):
            return False


def _loads_strictly() -> bool:
    """Whether tensors that do not fit are refused: always, but in a call of torch's ``load_state_dict`` with
    strict=False.

    torch does not tell the parts of a model, so its frame is asked. MMEngine's own loader, of ``load_from``, does not
    tell them either; it has strict=False whatever the user wants.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not nn.Module.load_state_dict.__code__:
        frame = frame.f_back
    return frame is None or frame.f_locals['strict']


@contextmanager
def _warned_if(lenient: bool) -> Iterator[None]:
    """Log the sentence of a CheckpointError, if lenient, instead of raising it."""
    try:
        yield
    except CheckpointError as error:
        if not lenient:
            raise
        print_log(str(error), logger='current', level=logging.WARNING)


@functools.cache
def _variants(cls: type[StrictModule]) -> tuple[tuple[str, StrictModule], ...]:
    """``cls.variants()``, which takes seconds to build for a large family."""
    return tuple(cls.variants())


def _fits(module: StrictModule, given: dict[str, Tensor]) -> bool:
    try:
        return not misfits(module.from_release(given), module.state_dict())
    except CheckpointError:
        return False


def _check_init_cfg(init_cfg: object) -> None:
    """Check what only a whole run would find late.

    Raises:
        ValueError: naming what is wrong.
    """
    for entry in _entries(init_cfg):
        if not isinstance(entry, dict) or 'type' not in entry:
            raise ValueError(
                "init_cfg must be a dict with a type, such as dict(type='Pretrained', checkpoint=...), or a list of "
                f'such, not {entry!r}'
            )
        if any(is_pretrained(inner) for inner in _entries(entry.get('override')) if isinstance(inner, dict)):
            raise ValueError(
                'override in init_cfg cannot load weights: give a list with an entry of type Pretrained, which loads '
                'the whole module'
            )
        if not is_pretrained(entry):
            continue
        known = {'type', *inspect.signature(StrictModule.load_pretrained).parameters} - {'self'}
        for key in set(entry) - known:
            raise ValueError(f'init_cfg of type Pretrained has no key {key}{near_misses(key, known)}')
        checkpoint = entry.get('checkpoint')
        if not isinstance(checkpoint, (str, Path)) or not str(checkpoint):
            raise ValueError(
                f'init_cfg of type Pretrained needs a checkpoint, a path or an address, not {checkpoint!r}: '
                'init_cfg=None starts from scratch'
            )
        if not isinstance(entry.get('prefix'), (str, type(None))):
            raise ValueError(f'prefix in init_cfg must be a text, not {entry["prefix"]!r}')
        if entry.get('in_channels') not in (None, *WAYS):
            raise ValueError(f'in_channels in init_cfg must be one of {", ".join(WAYS)}, not {entry["in_channels"]!r}')
        for key in ('strict', 'warm_start'):
            if not isinstance(entry.get(key, True), bool):
                raise ValueError(f'{key} in init_cfg must be True or False, not {entry[key]!r}')


def _entries(init_cfg: object) -> Iterable[object]:
    """The entries of an ``init_cfg``, which may be one or a list of them."""
    return init_cfg if isinstance(init_cfg, (list, tuple)) else [init_cfg] if init_cfg else []


def _known_layouts() -> dict[str, str]:
    """``LAYOUTS`` of all classes of strict modules."""
    found: dict[str, str] = {}
    classes = [StrictModule]
    for cls in classes:
        classes.extend(cls.__subclasses__())
        found.update(cls.published('LAYOUTS', {}))
    return found
