"""Checkpoint files: where the weights are in them, and what is refused."""

import json
import re
import zipfile
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import torch
from mmengine.logging import print_log
from mmengine.registry import MODELS
from safetensors import safe_open
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save
from torch import Tensor

from ..errors import CheckpointError
from ..privacy import without_secrets
from .downloads import from_hub, from_server, shortened
from .restricted_pickle import load_weights_only
from .shards import files_of_index, is_index
from .sources import missing_file, place_of
from .translation import first_names, odd_form

#: where trainers keep weights; averaged weights come first, because ELSA's authors evaluate those of ELSA-Swin-B
CONTAINERS = ('state_dict_ema', 'state_dict', 'model_ema', 'model')
#: what our files of safetensors note, with the names that checkpoints have for it in "meta"
NOTES = ('mmattn', 'dataset_meta')
#: what torch.compile, FSDP and activation checkpointing add to names, at any place
WRAPPERS = re.compile(r'(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.')


def read_checkpoint(
    path: str | Path, prefix: str | None = None, trusted: bool = False
) -> tuple[dict[str, Tensor], str, dict | None]:
    """The tensors of a backbone in a checkpoint of any trainer.

    Args:
        path, trusted: see :func:`read_file`.
        prefix: the names of the wanted tensors begin with it; it is removed, and what wrappers add is not part of it.
            Its last dot may be missing. By default "backbone." if any name begins with that. '' means all tensors.

    Returns:
        the tensors by name; a phrase that says where they are in the file; ``type`` and settings of the backbone, if
        mmattn wrote the file.

    Raises:
        CheckpointError: if the file cannot be read, has no tensors there, or two tensors for one name.
    """
    contents, shown = read_file(path, trusted=trusted), without_secrets(path)
    weights, container = weights_in(contents)
    source = f' "{container}"' if container else ''
    weights = weights if isinstance(weights, dict) else {}
    tensors = plain_names({name: value for name, value in weights.items() if isinstance(value, Tensor)}, shown)
    chosen = 'backbone.' if prefix is None else _plain_name(prefix and f'{prefix.removesuffix(".")}.')
    inside = {name.removeprefix(chosen): value for name, value in tensors.items() if name.startswith(chosen)}
    if prefix is None:
        twice = [name for name in inside if name in tensors]
        if twice:
            raise CheckpointError(
                f'{shown} has both {twice[0]} and {chosen}{twice[0]}: choose with prefix="" or prefix="{chosen}" '
                'beside the checkpoint'
            )
    if chosen and (inside or prefix is not None):
        tensors, source = inside, f'{source} "{chosen}*"'
    if not tensors:
        raise CheckpointError(f'{shown} holds no weights{f" under{source}" if source else ""}')
    noted = noted_settings(contents)
    return tensors, source.strip() or 'top level', noted.get(chosen.removesuffix('.'), noted.get(''))


def weights_in(contents: object) -> tuple[object, str]:
    """The part of a file's contents that holds the weights, and its key in ``CONTAINERS``; all contents and '' if none
    of these keys is there."""
    for container in CONTAINERS if isinstance(contents, dict) else ():
        if isinstance(contents.get(container), dict):
            return contents[container], container
    return contents, ''


def plain_names(state_dict: dict[str, object], source: str) -> dict[str, object]:
    """A state dict without what wrappers add to names: "module." at their beginning, torch.compile's "_orig_mod." ...

    Raises:
        CheckpointError: if two names become one, or one is not a string.
    """
    original: dict[str, str] = {}
    for name in state_dict:
        if not isinstance(name, str):
            raise CheckpointError(f'{source} has the name {name!r} among its tensors: names of tensors must be text')
        other = original.setdefault(_plain_name(name), name)
        if other != name:
            raise CheckpointError(f'{source} has both {other} and {name}, one tensor of the model: remove one of them')
    return {name: state_dict[given] for name, given in original.items()}


def _plain_name(name: str) -> str:
    return re.sub(r'^(module\.)+', '', WRAPPERS.sub('', name))


def noted_settings(contents: object) -> dict[str, object]:
    """``type`` and settings of the backbones, by their names in the model, that mmattn noted in a file; as the class of
    the type reads them, see :class:`mmattn.weights.StrictModule`."""
    meta = contents.get('meta') if isinstance(contents, dict) else None
    noted = meta.get('mmattn') if isinstance(meta, dict) else None
    noted = dict(noted) if isinstance(noted, dict) else {}
    for name, note in noted.items():
        kind = note.get('type') if isinstance(note, dict) else None
        if isinstance(kind, str) and hasattr(MODELS.module_dict.get(kind), 'read_settings'):
            noted[name] = MODELS.module_dict[kind].read_settings(note)
    return noted


def read_file(path: str | Path, map_location: str | torch.device = 'cpu', trusted: bool = False) -> object:
    """Read a file of ``torch.save`` or safetensors, weights or the state of a training, without running code in it.

    Args:
        path: a file, an address or a name, see :mod:`mmattn.weights.sources`. Downloads are kept, those from the
            Hugging Face Hub in its folder, others in the folder of torch.hub. Of a file *.index.json, all files that it
            names are read.
        trusted: read any object, as ``torch.load(weights_only=False)`` does. This runs code in the file.

    Raises:
        CheckpointError: if the file is missing, damaged or not a checkpoint, has objects that only code can build, or
            has weights that are broken: a NaN or an infinity, a negative variance, a form that models do not have.
    """
    shown = without_secrets(path)
    try:
        place = place_of(str(path))
        if place != str(path):
            print_log(f'{shown} is {without_secrets(place)}', logger='current')
        if '://' not in place:
            return _read(Path(place).expanduser(), shown, map_location, trusted)
        if place.startswith('hf://'):
            return _read(from_hub(place), shown, map_location, trusted)
        return from_server(place, lambda file: _read(file, shown, map_location, trusted))
    except CheckpointError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # an impossible path or address
        raise CheckpointError(f'{shortened(path)} cannot be read ({shortened(error)})') from error


def safetensors_of(
    tensors: dict[str, Tensor], settings: dict[str, object], dataset_meta: dict[str, object] | None = None
) -> bytes:
    """A file of safetensors for :func:`read_file`.

    Args:
        settings: ``type`` and settings of the backbones, by their names in the model.
        dataset_meta: lists of the names of the classes, "classes", and of their colours, "palette".
    """
    notes = {key: json.dumps(note) for key, note in zip(NOTES, (settings, dataset_meta)) if note is not None}
    return save(tensors, dict(notes, format='pt'))


def _read(file: Path, shown: str, map_location: str | torch.device, trusted: bool) -> object:
    """Read a file. Error messages name it as ``shown``."""
    if (file / '.metadata').is_file():
        raise CheckpointError(f'{shown} is sharded, merge it first: python tools/merge_shards.py {shown} TARGET')
    if file.is_dir():
        raise CheckpointError(f'{shown} is a folder: give the path of a file in it')
    if not file.is_file():
        raise CheckpointError(missing_file(shown, scratch=''))
    if not file.stat().st_size:
        raise CheckpointError(f'{shown} cannot be read as a PyTorch checkpoint: it is empty')
    if is_index(file):
        return _read_parts(file, shown, map_location, trusted)
    if file.suffix.lower() == '.safetensors':
        try:
            contents = load_safetensors(file, str(map_location or 'cpu'))
            with safe_open(file, 'pt') as opened:
                notes = opened.metadata() or {}
            meta = {key: json.loads(notes[key]) for key in NOTES if key in notes}
        except Exception as error:  # safetensors raises a kind of its own, and those of the system
            raise CheckpointError(f'{shown} cannot be read as safetensors: {shortened(error)}') from error
        _check_values(shown, contents)
        return dict(meta=meta, state_dict=contents) if any(meta.values()) else contents
    try:
        if zipfile.is_zipfile(file):
            check_archive(file, file.stat().st_size)
        if trusted:
            contents = torch.load(file, map_location=map_location, weights_only=False)
        else:
            contents = load_weights_only(file, map_location)
    except Exception as error:  # a damaged file can raise any error
        raise CheckpointError(f'{shown} cannot be read as a PyTorch checkpoint: {_reason(error, file)}') from error
    _check_values(shown, contents)
    return contents


def _read_parts(index: Path, shown: str, map_location: str | torch.device, trusted: bool) -> dict[str, object]:
    """Read the files that an index names, which must have the tensors that it says, and no others."""
    files = files_of_index(index, shown)
    tensors, noted = {}, {}
    for name, expected in files.items():
        if not (index.parent / name).is_file():
            raise CheckpointError(f'{shown} names {name}, which is not beside it: download all files to one folder')
        contents = _read(index.parent / name, f'{name} of {shown}', map_location, trusted)
        weights, _ = weights_in(contents)
        weights = weights if isinstance(weights, dict) else {}
        if weights.keys() != expected:
            odd = min(map(str, weights.keys() ^ expected))
            where = next((other for other, names in files.items() if odd in names), 'no file')
            raise CheckpointError(
                f'{shown}: {name} has {"no " if odd in expected else ""}{odd}, which the index has in {where}: the '
                'files do not belong together, download all again'
            )
        tensors.update(weights)
        noted = noted or noted_settings(contents)
    return dict(meta=dict(mmattn=noted), state_dict=tensors) if noted else tensors


def check_archive(file: Path | BinaryIO, size: int) -> None:
    """Check what torch does not look at in a zip file of ``size`` bytes.

    Raises:
        CheckpointError: if ``torch.save`` did not write it.
        zipfile.BadZipFile: if it is damaged.
    """
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        if sum(record.file_size for record in records) > size:
            raise CheckpointError('it is compressed, which torch.save does not do, and could fill the memory')
        # Of a record that is marked as a folder, torch takes whatever is in memory for its values.
        if archive.testzip() or any(record.external_attr & 0x10 for record in records):
            raise zipfile.BadZipFile('not as it was written')
    parts = {Path(record.filename).name for record in records}
    if 'constants.pkl' in parts:
        raise CheckpointError('it is a TorchScript program: save the state_dict() of its model with torch.save')
    if 'data.pkl' not in parts:
        raise CheckpointError('torch.save did not write it')


def _reason(error: Exception, file: Path) -> str:
    """Why it cannot be read, as the end of a sentence."""
    culprit = re.search(r'(?:GLOBAL|unsupported class|unrecognized function|but got) <?([\w.]+( .*>)?)', str(error))
    if culprit:
        return (
            f'it has {culprit[1]} beside tensors and plain values, and code in a file is not run. If you trust the '
            'file, --trust-checkpoint reads it; for init_cfg, tools/convert_weights.py with that flag writes a clean '
            'copy'
        )
    if isinstance(error, (CheckpointError, PermissionError)):
        return shortened(error)
    with file.open('rb') as opened:
        start = opened.read(64).lstrip()
    if start.startswith(b'<'):
        return 'it is a web page, give the address or path of the file itself'
    return 'it is cut short or damaged' if start[:2] == b'PK' else 'torch.save did not write it, or it is damaged'


def is_mask(name: str) -> bool:
    """Whether a tensor may hold infinities, by its name: a mask of attention is added to scores."""
    return name.endswith('mask')


def _check_values(path: str, contents: object) -> None:
    """Check that all weights are ordinary tensors of finite values; log it if they have half precision."""
    # All places where trainers keep weights
    places = (contents, *map(contents.get, (*CONTAINERS, 'ema_state_dict'))) if isinstance(contents, dict) else ()
    pairs = chain.from_iterable(place.items() for place in places if isinstance(place, dict))
    halves = set()
    for name, value in pairs:
        if not isinstance(value, Tensor):
            continue
        if not isinstance(name, str):
            raise CheckpointError(f'{path} has a tensor of the name {name!r}: names of tensors must be text')
        shown = first_names([name])
        form = odd_form(value)
        if form:
            raise CheckpointError(f'{path}: {shown} is {form}, which no model here takes: use another checkpoint')
        if not value.is_floating_point():
            continue
        what = ''
        if not value.isfinite().all() and not (is_mask(name) and not value.isnan().any()):
            what = 'NaN' if value.isnan().any() else 'an infinity'
        elif name.endswith('running_var') and (value < 0).any():
            what = 'a negative variance'
        if what:
            raise CheckpointError(f'{path} has {what} in {shown}: these weights are broken, use another checkpoint')
        if value.dtype in (torch.float16, torch.bfloat16):
            halves.add(str(value.dtype).removeprefix('torch.'))
    if halves:
        what = f'weights of half precision ({", ".join(sorted(halves))})'
        print_log(f'{path} has {what}: they are cast to the dtype of the model', logger='current')
