"""Sharded training with MMEngine's FSDP strategy, see configs/_base_/fsdp.py.

A sharded checkpoint is a folder, such as ``epoch_3.pth``. ``torch.distributed.checkpoint`` (DCP) writes the tensors:
each process writes its part of them. ``rest.pth`` has everything else that MMEngine saves of a training.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path, PosixPath

import torch
from mmengine._strategy import FSDPStrategy
from mmengine.device import get_device
from mmengine.dist import barrier, is_main_process
from mmengine.optim import BaseOptimWrapper
from mmengine.registry import FUNCTIONS, STRATEGIES
from mmengine.runner.checkpoint import _load_checkpoint
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, TensorStorageMetadata, filesystem, metadata
from torch.distributed.fsdp import FullyShardedDataParallel

from ..errors import CheckpointError, describe
from ..packages import require_sharding
from ..weights import read_file
from ..weights.restricted_pickle import restricted_unpickler

with suppress(ImportError):  # older than require_sharding allows
    from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner, load, save
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh

#: the file with what a sharded checkpoint has beside tensors
REST = 'rest.pth'


@FUNCTIONS.register_module()
def wrap_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """An ``auto_wrap_policy`` of PyTorch's FSDP: each block whose class sets ``sharding_unit`` becomes a unit."""
    return recurse or getattr(module, 'sharding_unit', False)


@STRATEGIES.register_module()
class ShardedStrategy(FSDPStrategy):
    """MMEngine's FSDPStrategy with sharded checkpoints. Any number of processes can resume from them.

    All processes write and read a checkpoint together, so all of them must see the same folder. A checkpoint is
    complete or does not exist. ``load_from`` takes ordinary checkpoints too.

    Args: those of MMEngine's FSDPStrategy, without ``state_dict_cfg``.

    Raises:
        OSError: in all processes, if a checkpoint cannot be written.
        CheckpointError: if a sharded checkpoint is damaged, or belongs to another model or optimizer.
    """

    def __init__(self, **kwargs) -> None:
        # For loading ordinary checkpoints. MMEngine's "full" copies tensors to the CPU and frees the originals, which
        # are the same tensors for a model on the CPU.
        full = dict(
            state_dict_type='FULL_STATE_DICT',
            state_dict_config=dict(type='FullStateDictConfig'),
            optim_state_dict_config=dict(type='FullOptimStateDictConfig'),
        )
        super().__init__(state_dict_cfg=full, **kwargs)

    def _wrap_model(self, model: nn.Module) -> nn.Module:
        mesh = init_device_mesh(get_device(), (self.world_size,))  # With a mesh, state dicts contain DTensors.
        self.model_wrapper = dict(self.model_wrapper or {}, device_mesh=mesh)
        return super()._wrap_model(model)

    def build_optim_wrapper(self, optim_wrapper: dict, model: nn.Module | None = None) -> BaseOptimWrapper:
        # Shards are flat: rules by the shape of a parameter, such as flat_decay_mult, would take each for a vector.
        whole = FullyShardedDataParallel.summon_full_params(self.model, writeback=False)
        with whole if self.model._use_orig_params else nullcontext():
            built = super().build_optim_wrapper(optim_wrapper, model)
        return clip_all_shards(built, self.model)

    def model_state_dict(self) -> dict:
        return get_model_state_dict(self.model)

    def optim_state_dict(self) -> dict:
        own = self.optim_wrapper.state_dict()  # It also has the scaler of mixed precision.
        return {**own, **get_optimizer_state_dict(self.model, self.optim_wrapper.optimizer)}

    def load_optim_state_dict(self, state_dict: dict) -> None:
        sharded = {key: state_dict.pop(key) for key in ('state', 'param_groups')}
        set_optimizer_state_dict(self.model, self.optim_wrapper.optimizer, sharded)
        self.optim_wrapper.load_state_dict({**self.optim_wrapper.state_dict(), **state_dict})

    def save_checkpoint(self, filename: str, *, callback: Callable[[dict], None] | None = None, **kwargs) -> None:
        part = f'{filename}.part'

        def save_tensors(state: dict) -> None:
            if callback is not None:
                callback(state)
            # Buffers, such as those of batch norms, differ between processes. Those of the first are saved, as in DDP.
            planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
            save(_take_tensors(state), storage_writer=FileSystemWriter(part), planner=planner)

        try:
            super().save_checkpoint(os.path.join(part, REST), callback=save_tensors, **kwargs)
        except CheckpointException as error:
            first = next(iter(error.failures.values()))[0]
            if is_main_process():
                shutil.rmtree(part, ignore_errors=True)
            if isinstance(first, OSError):
                raise OSError(first.errno, first.strerror, filename) from error
            raise
        if is_main_process():
            with open(os.path.join(part, REST), 'rb+') as file:
                os.fsync(file.fileno())
            old = f'{filename}.old.part'
            if os.path.exists(filename):
                os.replace(filename, old)
            os.replace(part, filename)
            shutil.rmtree(old, ignore_errors=True)
        barrier()

    def load_checkpoint(self, filename: str, *, callback: Callable[[dict], None] | None = None, **kwargs) -> dict:
        if not os.path.isdir(filename):
            return super().load_checkpoint(filename, callback=callback, **kwargs)
        self.logger.info(f'Load checkpoint from {filename}')
        state, saved = _load_checkpoint(os.path.join(filename, REST)), read_shard_metadata(filename)
        own = dict(state_dict=self.model_state_dict())
        if 'optimizer' in state:
            own['optimizer'] = self.optim_state_dict()
        tensors = _take_tensors(own)
        for key in {**saved, **tensors}:
            # The optimizer has no state for a parameter without a gradient so far.
            if key not in tensors or key not in saved and not key.startswith('optimizer.'):
                difference = f'only {"the checkpoint" if key in saved else "the model"} has {key}'
            elif key in saved and saved[key].size != tensors[key].size():
                difference = f'{key} is {tuple(saved[key].size)} instead of {tuple(tensors[key].size())}'
            else:
                continue
            raise CheckpointError(
                f'{filename} belongs to another model or optimizer than the config: {difference}; take its own config'
            )
        tensors = {key: tensors[key] for key in saved}
        load(tensors, storage_reader=FileSystemReader(filename))
        _put_back(state, tensors)
        if callback is not None:
            callback(state)
        set_model_state_dict(self.model, state.pop('state_dict'))
        return state


def clip_all_shards(optim_wrapper: BaseOptimWrapper, model: FullyShardedDataParallel) -> BaseOptimWrapper:
    """Let ``clip_grad`` take the norm of the whole gradient. MMEngine takes that of each process's shard, so the
    processes would clip differently."""
    if getattr(optim_wrapper, 'clip_func', None) is nn.utils.clip_grad_norm_:
        optim_wrapper.clip_func = lambda parameters, **arguments: model.clip_grad_norm_(**arguments)
    return optim_wrapper


def merge_shards(folder: str | Path, trusted: bool = False) -> dict:
    """The contents of a sharded checkpoint, in the form of MMEngine's ordinary checkpoints.

    Args:
        trusted: run the code in ``rest.pth``, if there is any, see :func:`mmattn.weights.read_file`.

    Raises:
        CheckpointError: if the checkpoint is missing or damaged.
        MissingPackage: if torch is too old to read it.
    """
    require_sharding('merging shards')
    saved, state = read_shard_metadata(folder), read_file(Path(folder, REST), trusted=trusted)
    tensors = {key: torch.empty(value.size, dtype=value.properties.dtype) for key, value in saved.items()}
    try:
        load(tensors, storage_reader=FileSystemReader(folder), no_dist=True)
    except CheckpointException as error:
        raise CheckpointError(f'{folder} cannot be read: its tensors are damaged') from error
    _put_back(state, tensors)
    return state


def read_shard_metadata(folder: str | Path) -> dict[str, TensorStorageMetadata]:
    """Size and dtype of each tensor in a sharded checkpoint, by name. No code in its files is run.

    Raises:
        CheckpointError: if the checkpoint is missing or damaged, or contains anything but tensors.
    """
    file = Path(folder, '.metadata')
    if not file.is_file():
        raise CheckpointError(f'{folder} is not a sharded checkpoint: it has no file {file.name}')
    classes = [*(getattr(metadata, name) for name in metadata.__all__), torch.Size, PosixPath]
    classes += [metadata._MEM_FORMAT_ENCODING, filesystem._StorageInfo, torch.serialization._get_layout]
    allowed = {f'{value.__module__}.{value.__qualname__}': value for value in classes}
    allowed.update((str(value), value) for value in vars(torch).values() if isinstance(value, torch.dtype))
    try:
        with file.open('rb') as opened:
            contents = restricted_unpickler(allowed)(opened).load()
        for shard in contents.storage_data.values():
            if Path(folder, shard.relative_path).stat().st_size < shard.offset + shard.length:
                raise EOFError(f'{shard.relative_path} is cut short')
        tensors = contents.state_dict_metadata
        if not all(isinstance(value, TensorStorageMetadata) for value in tensors.values()):
            raise TypeError('it contains objects that are not tensors')
    except Exception as error:  # a damaged file can raise any error
        raise CheckpointError(f'{folder} cannot be read as a sharded checkpoint: {describe(error)}') from error
    return tensors


def _parts(state: dict) -> Iterator[tuple[str, dict]]:
    """The dicts with tensors in a state, each with the prefix of the names of its tensors."""
    yield 'state_dict', state['state_dict']
    for name, values in state.get('optimizer', {}).get('state', {}).items():
        yield f'optimizer.{name}', values


def _take_tensors(state: dict) -> dict[str, Tensor]:
    """Replace the tensors of a state by None, and return them by name."""
    tensors = {}
    for part, values in _parts(state):
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f'{part}.{name}'], values[name] = value, None
    return tensors


def _put_back(state: dict, tensors: dict[str, Tensor]) -> None:
    """Put tensors that :func:`_take_tensors` took back into a state."""
    for part, values in _parts(state):
        values.update((name, tensors[f'{part}.{name}']) for name in values if f'{part}.{name}' in tensors)
