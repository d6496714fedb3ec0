"""Compile the Triton kernels that gpu_check.py launches, for a GPU that is not here, and use them where it is.

    python tools/dev/gpu_kernels.py FOLDER       # in the project's environment: compiles them, and writes FOLDER
    python tools/dev/gpu_kernels.py FOLDER --only eager 'mask-rcnn gsa-r50'    # those of some steps
    python tools/dev/gpu_kernels.py --use FOLDER # there: puts them into Triton's cache, TRITON_CACHE_DIR

All that the steps of gpu_check.py launch runs on fake tensors, as in launches.py, and each kernel is compiled in place
of its launch: but those of compiled models, which torch.compile writes anew, and of tests. Triton finds a kernel by a
key of its source, its arguments, their alignment and its options, and of Triton's own files, which differ between
builds of one version for two versions of Python. So FOLDER has what the first part of the key is made of, and the
second part is added there. Tried with Triton 3.6; CountingCache is for all.
"""

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import triton
from triton.runtime.cache import FileCacheManager

if TYPE_CHECKING:
    import torch
    from torch import nn

ROOT = Path(__file__).resolve().parents[2]
ARCH = 90  #: compute capability of H100 and H200
#: of a Mask R-CNN's batches of photos
PHOTOS = (800, 1216), (768, 1344), (800, 1344)


class CountingCache(FileCacheManager):
    """Triton's cache. It notes each kernel that a process takes from it or has to compile, in a file beside that of
    its turn."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        found = super().get_group(filename)
        if turn := os.environ.get('MMATTN_GPU_TURN'):
            with Path(f'{turn}.kernels').open('a', encoding='utf-8') as file:
                file.write(f'{"cached" if found else "compiled"} {Path(filename).stem}\n')
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--use', action='store_true')
    parser.add_argument('--only', nargs='+', default=[''], metavar='NAME', help='what the names of steps begin with')
    args = parser.parse_args()
    if args.use:
        use(args.folder)
        return
    compile_ahead(args.folder, tuple(args.only))


def compile_ahead(folder: Path, only: tuple[str, ...]) -> None:
    """Compile what is not in work_dirs/triton yet, and write the folder."""
    # apart from the usual cache: others need also what these kernels were compiled from
    os.environ.update(TRITON_CACHE_DIR=str(ROOT / 'work_dirs' / 'triton'), TRITON_STORE_BINARY_ONLY='1')
    sys.path.insert(0, str(ROOT / 'tools'))
    with kept(folder) as kernels:
        for name, call in launches_of_the_check():
            if not name.startswith(only):
                continue
            began, before = time.monotonic(), len(kernels)
            call()
            print(f'{name}: {len(kernels) - before} more kernels, {time.monotonic() - began:.1f} s', flush=True)


@contextmanager
def kept(folder: Path) -> Iterator[dict[str, dict]]:
    """Write all kernels that are compiled or found in the cache meanwhile, and C sources of their launchers."""
    from triton import knobs
    from triton.backends.nvidia.driver import make_launcher
    from triton.runtime.cache import get_cache_key

    kernels: dict[str, dict] = {}
    launchers: dict[str, None] = {}

    def key(src: object, backend: object, options: object, env_vars: dict[str, str]) -> str:
        whole = get_cache_key(src, backend, options, env_vars=env_vars)
        name = hashlib.sha256(whole.encode()).hexdigest()
        kernels[name] = dict(source=src.hash(), options=options.hash())
        return whole

    def compiled(*, src: object, metadata: dict, metadata_group: dict[str, str], **_) -> None:
        files = [Path(path) for path in metadata_group.values() if path.endswith(('.json', '.cubin'))]
        kernels[metadata['hash']]['files'] = [file.name for file in files]
        (folder / metadata['hash']).mkdir(parents=True, exist_ok=True)
        for file in files:
            (folder / metadata['hash'] / file.name).write_bytes(file.read_bytes())
        launchers[make_launcher(src.constants, src.signature, metadata.get('tensordesc_meta'))] = None

    with (
        mock.patch('triton.compiler.compiler.get_cache_key', key),
        mock.patch.object(knobs.compilation, 'listener', compiled),
    ):
        yield kernels
    kernels = {name: kernel for name, kernel in kernels.items() if 'files' in kernel}
    found = dict(triton=triton.__version__, arch=ARCH, kernels=kernels, launchers=list(launchers))
    (folder / 'kernels.json').write_text(json.dumps(found), 'utf-8')


def use(folder: Path) -> None:
    """Put kernels into Triton's cache, and compile their launchers, which are in C. Another version of Triton has other
    kernels, and compiles its own."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import get_cache_key, get_cache_manager

    found = json.loads((folder / 'kernels.json').read_text('utf-8'))
    if triton.__version__ != found['triton']:
        print(f'Kernels are for Triton {found["triton"]}, and here is {triton.__version__}: all are compiled here.')
        return
    backend = make_backend(GPUTarget('cuda', found['arch'], 32))
    for name, kernel in found['kernels'].items():
        source, options = (SimpleNamespace(hash=partial(str, kernel[part])) for part in ('source', 'options'))
        key = get_cache_key(source, backend, options, env_vars={})
        cache = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
        group = {file: cache.put((folder / name / file).read_bytes(), file) for file in kernel['files']}
        cache.put_group(next(file for file in group if file.endswith('.json')), group)
    print(f'{len(found["kernels"])} kernels are in the cache.')
    began = time.monotonic()
    # Without a driver, there is nothing to link.
    with suppress(AssertionError, OSError, subprocess.CalledProcessError):
        compile_launchers(found['launchers'])
        print(f'{len(found["launchers"])} launchers took {time.monotonic() - began:.1f} s.')


def compile_launchers(sources: list[str]) -> None:
    from triton.backends.nvidia import driver
    from triton.runtime.build import compile_module_from_src

    options = dict(library_dirs=driver.library_dirs(), include_dirs=driver.include_dirs, libraries=driver.libraries)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(compile_module_from_src, name='__triton_launcher', **options), sources))


class Pointer:
    """A tensor without memory. That of torch's allocator begins at a multiple of 512 bytes."""

    def __init__(self, x: 'torch.Tensor') -> None:
        self.dtype, self.place = x.dtype, x.storage_offset() * x.element_size()

    def data_ptr(self) -> int:
        return self.place


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Operators run on fake tensors of a GPU, and kernels are compiled for it in place of being launched."""
    import launches
    import torch
    from triton_report import no_device

    no_device(ARCH)
    run = triton.runtime.JITFunction.run

    def compiled(self, *args: object, grid: object, warmup: object, **kwargs: object) -> None:
        given = [Pointer(x) if isinstance(x, torch.Tensor) else x for x in args]
        run(self, *given, grid=grid, warmup=True, **kwargs)

    with (
        launches.FakeTensorMode(allow_non_fake_inputs=True),
        launches.counted(),
        mock.patch('triton.runtime.JITFunction.run', compiled),
    ):
        yield


def launches_of_the_check() -> Iterator[tuple[str, Callable[[], None]]]:
    """What gpu_check.py runs on a GPU, the most valuable first. torch's Swin and ResNet have no kernels of ours."""
    import benchmark
    import gpu_check
    import torch
    from gpu_choices import CHOICES, launched_with
    from gpu_operators import GPU_SIZES, MAPS
    from mmengine.registry import MODELS

    from mmattn.selftest import SIZES

    half, options = (torch.bfloat16, torch.float16), SimpleNamespace(device='cpu', row=None, heads=None)
    batch, side = gpu_check.SIZES['cuda'][:2]
    for dtype in (*half, torch.float32):
        yield f'selftest, {dtype}', partial(operators, [(name, SIZES) for name in MAPS], dtype)
    for name in gpu_check.PEERS:
        images = [(2, 3, side, side), (batch, 3, side, side)]
        yield f'eager {name}', partial(backbone, partial(benchmark.eager, name, options), images, half[:1])
    for name in gpu_check.PEERS:
        images = [(batch // 4, 3, side, side)]
        yield f'half {name}', partial(backbone, partial(benchmark.eager, name, options), images, (*half, torch.float32))
    for head, models in gpu_check.HEADS.items():
        for name in gpu_check.PEERS.keys() & models:
            config = gpu_check.whole_config(f'{head} {name}', gpu_check.SIZES['cuda'], Path()).model.backbone
            sizes = PHOTOS if head == 'mask-rcnn' else [(side, side)]
            images = [(2, 3, *size) for size in sizes]
            yield f'{head} {name}', partial(backbone, partial(MODELS.build, config), images, half[1:], inference=False)
    maps = [(name, (batch, side, side, *rest)) for name, sizes in MAPS.items() for side, *rest in sizes]
    for choice in CHOICES:
        cases = [case for case in maps if case[0] == choice.operator]
        for setting in choice.others:
            name = f'{choice.operator}, {choice.kernel or "all"}, {setting}'
            yield name, launched_with(choice, setting)(partial(operators, cases, half[0]))
    for dtype in (*half, torch.float32):
        yield f'operators, {dtype}', partial(operators, [*((name, GPU_SIZES) for name in MAPS), *maps], dtype)


def backbone(
    build: Callable[[], 'nn.Module'],
    images: Sequence[tuple[int, ...]],
    dtypes: Sequence['torch.dtype'],
    inference: bool = True,
) -> None:
    """Inference, with and without what gradients need, and training steps."""
    import launches
    import torch

    model = shallow(build())
    steps = [(False, False), (False, True), (True, True)][0 if inference else 2 :]
    with pretended_gpu():
        model.to_empty(device='cuda')
        for image, dtype, (training, gradients) in itertools.product(images, dtypes, steps):
            model.train(training)
            half = torch.autocast('cuda', dtype, enabled=dtype != torch.float32)
            with torch.set_grad_enabled(gradients), half:
                outputs = model(torch.empty(image, device='cuda'))
            if training:
                launches.backward(sum(out.float().square().mean() for out in outputs))


def shallow(model: 'nn.Module') -> 'nn.Module':
    """The model with three blocks of long stages: the first two, which differ in shifts and dilations, and the last."""
    from torch.nn import ModuleList, Sequential

    if max(model.out_indices) > 3:  # A ViT's maps are those of blocks.
        return model
    for module in list(model.modules()):
        for name, blocks in list(module.named_children()):
            if isinstance(blocks, (ModuleList, Sequential)) and len(set(map(type, blocks))) == 1 and len(blocks) > 4:
                setattr(module, name, blocks[:2] + blocks[-1:])
    return model


def operators(cases: Sequence[tuple[str, tuple[int, ...]]], dtype: 'torch.dtype') -> None:
    """Operators by their kernels, and their gradients."""
    import launches
    import torch

    from mmattn.ops.backend import CannotServe
    from mmattn.selftest import OPERATORS

    for name, sizes in cases:
        compute, backends, shapes = OPERATORS[name]
        with pretended_gpu(), suppress(CannotServe):
            inputs = [torch.empty(shape, device='cuda', dtype=dtype, requires_grad=True) for shape in shapes(*sizes)]
            for gradients in (False, True) if 'triton' in backends else ():
                with torch.set_grad_enabled(gradients):
                    out = compute(*inputs, backend='triton')
            if 'triton' in backends:
                launches.backward(out.float().square().mean())


if __name__ == '__main__':
    main()
