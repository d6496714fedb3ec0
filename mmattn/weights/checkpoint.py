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

#: where trainers keep weights, the averaged ones, which their authors evaluate, first
CONTAINERS = ('state_dict_ema', 'state_dict', 'model_ema', 'model')
#: what wrappers and whole models put before the backbone's names
PREFIXES = ('module.', 'backbone.')


class CheckpointError(InputError, RuntimeError):
    """A checkpoint cannot be read, or does not fit the backbone it is loaded into."""


def read_checkpoint(path: str, prefix: str | None = None, trusted: bool = False) -> tuple[dict[str, Tensor], str]:
    """The backbone's tensors in a checkpoint, whatever it is wrapped in.

    Args:
        path: see :func:`read_file`.
        prefix: what the names of the wanted tensors begin with, a leading "module." aside; it is removed. By default
            "backbone." if any name begins so.
        trusted: see :func:`read_file`.

    Returns:
        the tensors by name, and a phrase saying where in the file they stood.

    Raises:
        CheckpointError: if the file cannot be read, or holds no tensors there.
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
    """What ``torch.save`` wrote, be it weights or the state of a training, without running any code in it.

    Args:
        path: a file, an address http(s)://..., or torchvision://NAME. What is downloaded is kept where torch.hub does.
        map_location: where the tensors go.
        trusted: take any object, as ``torch.load(weights_only=False)`` does: code in the file is run.

    Raises:
        CheckpointError: if the file is missing, damaged, no checkpoint, holds objects that only code can build, or has
            a NaN or an infinity among its weights.
    """
    file = _download(path) if '://' in path else Path(path).expanduser()
    if not file.is_file():
        raise CheckpointError(
            f'there is no checkpoint {path}: put the weights there, or set init_cfg=None to start from scratch'
        )
    if not file.stat().st_size:
        raise CheckpointError(f'{path} cannot be read as a PyTorch checkpoint: it is empty')
    try:
        if zipfile.is_zipfile(file):  # torch does not compare checksums
            with zipfile.ZipFile(file) as archive:
                if archive.testzip():
                    raise zipfile.BadZipFile('another checksum than when it was written')
        if trusted:
            contents = torch.load(file, map_location=map_location, weights_only=False)
        else:
            contents = load_weights_only(file, map_location)
    except Exception as error:  # a damaged file can raise any
        raise CheckpointError(f'{path} cannot be read as a PyTorch checkpoint: {_reason(error, file)}') from error
    _check_values(path, contents)
    return contents


def _download(address: str) -> Path:
    if address.startswith('torchvision://'):
        from mmengine.runner.checkpoint import get_torchvision_models  # here, as it needs OpenCV

        name, models = address.removeprefix('torchvision://'), get_torchvision_models()
        if name not in models:
            raise CheckpointError(f'torchvision has no weights {name}, asked for by {address}')
        address = models[name]
    if not address.startswith(('http://', 'https://')):
        raise CheckpointError(
            f'{address} is no address that mmattn reads without running code: download the file and name it'
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
            f'it holds {culprit[1]}, not tensors and plain values alone, and code in a file is not run. If you '
            f'trust the file, --trust-checkpoint reads it; for init_cfg, tools/convert_weights.py with that flag '
            'makes a clean one of it'
        )
    with file.open('rb') as opened:
        zipped = opened.read(2) == b'PK'
    return 'it is cut short or damaged' if zipped else 'torch.save did not write it, or it is damaged'


def _check_values(path: str, contents: object) -> None:
    """Make sure that all weights are numbers, and say so if they are of half precision.

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
                raise CheckpointError(f'{path} has {what} in {name}: these weights are broken, take another checkpoint')
            if value.dtype in (torch.float16, torch.bfloat16):
                halves.add(str(value.dtype).removeprefix('torch.'))
    if halves:
        print_log(
            f'{path} has weights of half precision ({", ".join(sorted(halves))}): they are cast to the precision '
            'of the model',
            logger='current',
        )
