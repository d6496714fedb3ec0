import argparse
import contextlib
import pickle
from pathlib import Path

import torch
from torch import Tensor

#: where trainers keep weights, the averaged ones, which their authors evaluate, first
CONTAINERS = ('state_dict_ema', 'state_dict', 'model_ema', 'model')
#: what wrappers and whole models put before the backbone's names
PREFIXES = ('module.', 'backbone.')


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, or does not fit the backbone it is loaded into."""


def read_checkpoint(path: str, prefix: str | None = None) -> tuple[dict[str, Tensor], str]:
    """The backbone's tensors in a checkpoint, whatever it is wrapped in.

    Args:
        path: a file, or an address that MMEngine can load from. Files are read with ``weights_only``: code in them is
            never run.
        prefix: what the names of the wanted tensors begin with, a leading "module." aside; it is removed. By default
            "backbone." if any name begins so.

    Returns:
        the tensors by name, and a phrase saying where in the file they stood.

    Raises:
        CheckpointError: if the file is missing, no checkpoint, or holds no tensors there.
    """
    contents = _load(path)
    source = ''
    for container in CONTAINERS:
        if isinstance(contents, dict) and isinstance(contents.get(container), dict):
            contents, source = contents[container], f' "{container}"'
            break
    state_dict = {name: value for name, value in contents.items() if isinstance(value, Tensor)} \
        if isinstance(contents, dict) else {}
    for candidate in PREFIXES if prefix is None else (PREFIXES[0], prefix):
        inside = {name.removeprefix(candidate): value for name, value in state_dict.items()
                  if name.startswith(candidate)}
        if inside or candidate == prefix:
            state_dict, source = inside, f'{source} "{candidate}*"'
    if not state_dict:
        raise CheckpointError(f'{path} holds no weights{f" under{source}" if source else ""}')
    return state_dict, source.strip() or 'top level'


def _load(path: str) -> object:
    if '://' in path:
        from mmengine.runner import CheckpointLoader  # here, as it needs more than the rest of MMEngine (OpenCV)
        return CheckpointLoader.load_checkpoint(path, map_location='cpu')
    if not Path(path).is_file():
        raise CheckpointError(
            f'there is no checkpoint {path}: put the weights there, or set init_cfg=None to start from scratch')
    # timm's trainer keeps its arguments in the file; they are data.
    safe = getattr(torch.serialization, 'safe_globals', lambda _: contextlib.nullcontext())
    try:
        with safe([argparse.Namespace]):
            return torch.load(path, map_location='cpu', weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError, ValueError) as error:
        reason = str(error).strip().split('\n')[0] or type(error).__name__
        raise CheckpointError(f'{path} cannot be read as a PyTorch checkpoint of plain tensors ({reason})') from error
