"""Sharded training with MMEngine's FSDP strategy, see configs/_base_/fsdp.py.

A sharded checkpoint is a folder, such as ``epoch_3.pth``. ``torch.distributed.checkpoint`` (DCP) writes the tensors:
each process writes its part of them. ``rest.pth`` has everything else that MMEngine saves of a training.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from io import BytesIO
from math import prod
from pathlib import Path, PosixPath

import torch
from mmengine._strategy import FSDPStrategy
from mmengine.device import get_device
from mmengine.dist import barrier, is_main_process
from mmengine.optim import BaseOptimWrapper
from mmengine.registry import FUNCTIONS, STRATEGIES
from mmengine.runner.checkpoint import _load_checkpoint
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, LoadPlan, LoadPlanner, filesystem, metadata
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.futures import Future

from ..errors import CheckpointError, describe
from ..packages import require_sharding
from ..weights import first_names, odd_form, read_file
from ..weights.downloads import shortened
from ..weights.files import check_archive
from ..weights.restricted_pickle import load_weights_only, restricted_unpickler

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
    """An ``auto_wrap_policy`` of PyTorch's FSDP: each block whose class sets ``is_block`` becomes a unit."""
    return recurse or getattr(module, 'is_block', False)


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
        state, contents = _load_checkpoint(os.path.join(filename, REST)), read_shard_metadata(filename)
        saved = contents.state_dict_metadata
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
        _read_tensors(tensors, filename, contents)
        _put_back(state, tensors, filename)
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
        trusted: run the code in ``rest.pth``, if there is any, see :func:`mmguard.weights.read_file`.

    Raises:
        CheckpointError: if the checkpoint is missing or damaged.
        MissingPackage: if torch is too old to read it.
    """
    require_sharding('merging shards')
    contents, state = read_shard_metadata(folder), read_file(Path(folder, REST), trusted=trusted)
    if not isinstance(state, dict) or not isinstance(state.get('meta'), dict) or 'iter' not in state['meta']:
        raise CheckpointError(f'{folder}: {REST} holds no state of a training')
    saved = contents.state_dict_metadata
    tensors = {key: torch.empty(value.size, dtype=value.properties.dtype) for key, value in saved.items()}
    _read_tensors(tensors, folder, contents, no_dist=True)
    _put_back(state, tensors, folder)
    return state


class ShardReader(FileSystemReader):
    """Reads the tensors of a sharded checkpoint by contents of its metadata that were checked.

    torch's own reads the metadata again, as a pickle that may run code, and casts tensors of another dtype.
    """

    def __init__(self, folder: str | Path, contents: Metadata) -> None:
        super().__init__(folder)
        self.contents = contents

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        return self.contents

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            place, tensor = self.contents.storage_data[item.storage_index], self.contents.state_dict_metadata
            saved = tensor[item.storage_index.fqn]
            sizes = next(chunk.sizes for chunk in saved.chunks if chunk.offsets == item.storage_index.offset)
            with Path(self.path, place.relative_path).open('rb') as opened:
                opened.seek(place.offset)
                part = BytesIO(opened.read(place.length))
            check_archive(part, place.length)
            part.seek(0)
            value = load_weights_only(part, 'cpu')
            form = odd_form(value)
            if form or value.size() != sizes or value.dtype != saved.properties.dtype:
                what = form or f'{value.dtype} {tuple(value.size())}'
                raise CheckpointError(
                    f'{item.storage_index.fqn} is {what}, not {saved.properties.dtype} {tuple(sizes)}'
                )
            for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                value = value.narrow(dim, start, length)
            target = planner.resolve_tensor(item).detach()
            if target.size() != value.size():
                raise CheckpointError(f'{item.storage_index.fqn} is {tuple(value.size())}, not {tuple(target.size())}')
            target.copy_(value)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _read_tensors(tensors: dict[str, Tensor], folder: str | Path, contents: Metadata, **arguments: bool) -> None:
    """Give tensors the values that a sharded checkpoint has for them."""
    try:
        load(tensors, storage_reader=ShardReader(folder, contents), **arguments)
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise CheckpointError(
            f'{folder} cannot be read: its tensors are damaged ({shortened(describe(first))})'
        ) from error


def read_shard_metadata(folder: str | Path) -> Metadata:
    """What a sharded checkpoint says of its tensors: size and dtype by name, and where their parts are in its files.

    No code in its files is run. What is returned was made anew from values that were checked: each tensor has all of
    its values, once, in the files of this folder.

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
        tensors = {name: _checked_tensor(name, value) for name, value in contents.state_dict_metadata.items()}
        return Metadata(tensors, planner_data={}, storage_data=_checked_places(folder, tensors, contents.storage_data))
    except Exception as error:  # a damaged file can raise any error
        raise CheckpointError(f'{folder} cannot be read as a sharded checkpoint: {describe(error)}') from error


def _checked_tensor(name: object, saved: object) -> TensorStorageMetadata:
    """Size, dtype and chunks of a tensor, if the chunks cover it. FSDP shards the first dimension."""
    if type(name) is not str or type(saved) is not TensorStorageMetadata:
        raise TypeError('it contains objects that are not tensors')
    dtype, size = saved.properties.dtype, _checked_size(saved.size)
    chunks = [ChunkStorageMetadata(_checked_size(each.offsets), _checked_size(each.sizes)) for each in saved.chunks]
    end, whole = torch.Size([0] * len(size[:1])), size[1:]
    for chunk in sorted((each for each in chunks if prod(each.sizes)), key=lambda each: each.offsets):
        if len(chunk.sizes) != len(size) or chunk.offsets != (*end, *[0] * len(whole)) or chunk.sizes[1:] != whole:
            raise ValueError(f'the parts of {name} overlap, or do not cover it')
        end = torch.Size(start + length for start, length in zip(end, chunk.sizes))
    if type(dtype) is not torch.dtype or end != size[:1] and prod(size) or not chunks:
        raise ValueError(f'the parts of {name} do not cover it, or it has no dtype')
    return TensorStorageMetadata(TensorProperties(dtype=dtype), size, chunks)


def _checked_size(size: object) -> torch.Size:
    whole = isinstance(size, tuple) and all(type(length) is int and length >= 0 for length in size)
    if not whole or prod(max(length, 1) for length in size) >= 2**48:
        raise ValueError(f'{size!r} is no size of a tensor')
    return torch.Size(size)


def _checked_places(folder: str | Path, tensors: dict[str, TensorStorageMetadata], saved: dict) -> dict:
    """The file, offset and length of each chunk, if they are in the folder and do not overlap."""
    places, ends = {}, {}
    for name, tensor in tensors.items():
        for chunk in tensor.chunks:
            index = MetadataIndex(name, chunk.offsets)
            place = saved[index]
            file, start, length = place.relative_path, place.offset, place.length
            if type(file) is not str or Path(file).name != file or Path(folder, file).is_symlink():
                raise ValueError(f'{name} is in {file!r}, which is no file of this folder')
            if not all(type(number) is int and number >= 0 for number in (start, length)) or index in places:
                raise ValueError(f'{name} has no place in {file}')
            if Path(folder, file).stat().st_size < start + length:
                raise EOFError(f'{file} is cut short')
            if prod(chunk.sizes) * tensor.properties.dtype.itemsize > length:
                raise ValueError(f'{name} is larger than its part of {file}')
            places[index] = filesystem._StorageInfo(file, start, length)
            ends.setdefault(file, []).append((start, start + length))
    if set(saved) != set(places):
        raise ValueError('it has places of tensors that it does not name')
    for file, spans in ends.items():
        spans.sort()
        if any(start < end for (_, end), (start, _) in zip(spans, spans[1:])):
            raise ValueError(f'tensors overlap in {file}')
    return places


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


def _put_back(state: object, tensors: dict[str, Tensor], folder: str | Path) -> None:
    """Put tensors that :func:`_take_tensors` took back into a state.

    Raises:
        CheckpointError: if the state has no place for a tensor, or a weight has no tensor.
    """
    try:
        placed = {f'{part}.{name}': (values, name) for part, values in _parts(state) for name in values}
        lost = [key for key in tensors if key not in placed]
        lost += [
            key
            for key, (values, name) in placed.items()
            if key not in tensors and key.startswith('state_dict.') and values[name] is None
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f'{folder}: {REST} holds no state of a training') from error
    if lost:
        raise CheckpointError(f'{folder} cannot be read: .metadata and {REST} do not both have {first_names(lost)}')
    for key, value in tensors.items():
        values, name = placed[key]
        values[name] = value
