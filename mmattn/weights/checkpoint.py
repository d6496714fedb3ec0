"""Checkpoint files: where the weights are in them, and what is refused."""

import re
import urllib.error
import urllib.parse
import zipfile
from pathlib import Path

import torch
from mmengine.logging import print_log
from torch import Tensor

from ..errors import InputError
from .unpickling import load_weights_only

#: where trainers keep weights; averaged weights come first, because authors evaluate these
CONTAINERS = ('state_dict_ema', 'state_dict', 'model_ema', 'model')
#: prefixes that wrappers and whole models add to the backbone's names
PREFIXES = ('module.', 'backbone.')


class CheckpointError(InputError, RuntimeError):
    """A checkpoint cannot be read, or does not fit the model."""


def read_checkpoint(path: str, prefix: str | None = None, trusted: bool = False) -> tuple[dict[str, Tensor], str]:
    """The tensors of a backbone in a checkpoint of any trainer.

    Args:
        path: see :func:`read_file`.
        prefix: the names of the wanted tensors begin with it, after a leading "module."; it is removed. By default
            "backbone." if any name begins with that.
        trusted: see :func:`read_file`.

    Returns:
        the tensors by name, and a phrase that says where they are in the file.

    Raises:
        CheckpointError: if the file cannot be read, or has no tensors there.
    """
    contents = read_file(path, trusted=trusted)
    source = ''
    for container in CONTAINERS:
        if isinstance(contents, dict) and isinstance(contents.get(container), dict):
            contents, source = contents[container], f' "{container}"'
            break
    state_dict = (
        {name: value for name, value in contents.items() if isinstance(value, Tensor)}
        if isinstance(contents, dict)
        else {}
    )
    for candidate in PREFIXES if prefix is None else (PREFIXES[0], prefix):
        inside = {
            name.removeprefix(candidate): value for name, value in state_dict.items() if name.startswith(candidate)
        }
        if inside or candidate == prefix:
            state_dict, source = inside, f'{source} "{candidate}*"'
    if not state_dict:
        raise CheckpointError(f'{path} holds no weights{f" under{source}" if source else ""}')
    return state_dict, source.strip() or 'top level'


def read_file(path: str, map_location: str | torch.device = 'cpu', trusted: bool = False) -> object:
    """Read a file of ``torch.save``, weights or the state of a training, without running code in it.

    Args:
        path: a file, an address http(s)://..., or torchvision://NAME. Downloads are kept in the folder of torch.hub.
        map_location: device of the tensors.
        trusted: read any object, as ``torch.load(weights_only=False)`` does. This runs code in the file.

    Raises:
        CheckpointError: if the file is missing, is damaged, is no checkpoint, has objects that only code can build, or
            has a NaN or an infinity in its weights.
    """
    file = _download(path) if '://' in path else Path(path).expanduser()
    if not file.is_file():
        raise CheckpointError(
            f'there is no checkpoint {path}: put the weights there, or set init_cfg=None to start from scratch'
        )
    if not file.stat().st_size:
        raise CheckpointError(f'{path} cannot be read as a PyTorch checkpoint: it is empty')
    try:
        if zipfile.is_zipfile(file):  # torch does not check checksums
            with zipfile.ZipFile(file) as archive:
                if archive.testzip():
                    raise zipfile.BadZipFile('another checksum than when it was written')
        if trusted:
            contents = torch.load(file, map_location=map_location, weights_only=False)
        else:
            contents = load_weights_only(file, map_location)
    except Exception as error:  # a damaged file can raise any error
        raise CheckpointError(f'{path} cannot be read as a PyTorch checkpoint: {_reason(error, file)}') from error
    _check_values(path, contents)
    return contents


def _download(address: str) -> Path:
    if address.startswith('torchvision://'):
        from mmengine.runner.checkpoint import get_torchvision_models  # imported here, since it needs OpenCV

        name, models = address.removeprefix('torchvision://'), get_torchvision_models()
        if name not in models:
            raise CheckpointError(f'torchvision has no weights {name}, asked for by {address}')
        address = models[name]
    if not address.startswith(('http://', 'https://')):
        raise CheckpointError(
            f'{address} is no address that mmattn can read without running code: download the file and give its path'
        )
    file = Path(torch.hub.get_dir(), 'checkpoints', Path(urllib.parse.urlparse(address).path).name)
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(address, str(file), progress=False)
        except (urllib.error.URLError, OSError) as error:
            raise CheckpointError(f'{address} cannot be downloaded ({error})') from error
    return file


def _reason(error: Exception, file: Path) -> str:
    """Why it cannot be read, as the end of a sentence."""
    culprit = re.search(r'(?:GLOBAL|unsupported class|unrecognized function|but got) <?([\w.]+( .*>)?)', str(error))
    if culprit:
        return (
            f'it has {culprit[1]} beside tensors and plain values, and code in a file is not run. If you trust the '
            'file, --trust-checkpoint reads it; for init_cfg, tools/convert_weights.py with that flag writes a clean '
            'copy'
        )
    with file.open('rb') as opened:
        zipped = opened.read(2) == b'PK'
    return 'it is cut short or damaged' if zipped else 'torch.save did not write it, or it is damaged'


def _check_values(path: str, contents: object) -> None:
    """Check that all weights are finite; log it if they have half precision.

    Raises:
        CheckpointError: naming the first tensor with a NaN or an infinity.
    """
    if not isinstance(contents, dict):
        return
    halves = set()
    for container in (contents, *(contents.get(name) for name in (*CONTAINERS, 'ema_state_dict'))):
        for name, value in container.items() if isinstance(container, dict) else ():
            if not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            if not value.isfinite().all():
                what = 'NaN' if value.isnan().any() else 'an infinity'
                raise CheckpointError(f'{path} has {what} in {name}: these weights are broken, use another checkpoint')
            if value.dtype in (torch.float16, torch.bfloat16):
                halves.add(str(value.dtype).removeprefix('torch.'))
    if halves:
        print_log(
            f'{path} has weights of half precision ({", ".join(sorted(halves))}): they are cast to the dtype of the '
            'model',
            logger='current',
        )
