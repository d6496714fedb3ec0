"""Count what the host does in a step on a GPU, without one: functions of Python that it calls.

    python tools/dev/host_calls.py                                     # the models of gpu_check.py and their baselines
    python tools/dev/host_calls.py dinat-t swin-t --functions 20       # with those that are called most

In eager mode, the host must prepare the launches faster than the GPU works them off. A call takes some tenths of a
microsecond to two, by the processor; so does an operator of torch, which is not counted: see launches.py. Models run on
one small image on the CPU, whose tensors say that they are on a GPU. Triton's kernels are looked up and launched as
usual, but compute nothing. Tried with torch 2.11 and Triton 3.6.
"""

import argparse
import cProfile
import os
import pstats
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

os.environ.pop('TRITON_INTERPRET', None)  # Triton reads it when it is imported
sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (1, 2)]

import benchmark  # noqa: E402
import gpu_check  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import CompiledKernel  # noqa: E402

HERE = torch.zeros(0).get_device()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('models', nargs='*', default=gpu_check.models(), metavar='MODEL', help='as of benchmark.py')
    parser.add_argument('--functions', type=int, default=0, metavar='N', help='list the N that are called most')
    args = parser.parse_args()
    print('| model | peer | inference | ratio | training | ratio |\n|---|---|---|---|---|---|')
    models = dict.fromkeys(name for model in args.models for name in (gpu_check.PEERS.get(model), model) if name)
    found: dict[str, list[pstats.Stats]] = {}
    for model in models:
        found[model] = [calls(model, training) for training in (False, True)]
        peer = gpu_check.PEERS.get(model)
        cells = []
        for own, beside in zip(found[model], found[peer or model]):
            cells += [str(total(own)), f'{total(own) / total(beside):.2f}' if peer else '']
        print('|', ' | '.join([model, peer or '', *cells]), '|', flush=True)
    for model in args.models if args.functions else ():
        print(f'\n{model}, inference:')
        rows = sorted(functions(found[model][0]), reverse=True)
        print(*(f'{count:6} {name}' for count, name in rows[: args.functions]), sep='\n')


def calls(model: str, training: bool) -> pstats.Stats:
    """What is called in a step, after two others."""
    options = SimpleNamespace(device='cpu', row=None, heads=None, dtype='bfloat16', batch=1)
    built, image = benchmark.eager(model, options), benchmark.image(64, 64, options)
    step, profile = ('inference', 'training')[training], cProfile.Profile()
    with pretended_gpu():
        for _ in range(2):
            benchmark.run(built, image, step, options)
        profile.runcall(benchmark.run, built, image, step, options)
    return pstats.Stats(profile)


def functions(stats: pstats.Stats) -> Iterator[tuple[int, str]]:
    """Calls of each function of Python, and its place."""
    for (file, line, name), (_, count, *_) in stats.stats.items():
        if file != '~':  # of C
            yield count, f'{Path(file).parent.name}/{Path(file).name}:{line} {name}'


def total(stats: pstats.Stats) -> int:
    return sum(count for count, _ in functions(stats))


class Kernel:
    """In place of a compiled one. What it does without a GPU is Triton's."""

    name, function, packed_metadata, src = '', 0, (), SimpleNamespace(fn=None)
    launch_metadata, __getitem__ = CompiledKernel.launch_metadata, CompiledKernel.__getitem__

    def _init_handles(self) -> None:
        pass

    def run(self, x: int, y: int, z: int, stream: int, function: int, packed: tuple, metadata, enter, leave, *args):
        enter(metadata)
        leave(metadata)


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Tensors on the CPU say that they are on a GPU."""

    def compiled(self, key, signature, device, *_: object) -> Kernel:
        self.device_caches[device][0][key] = kernel = Kernel()
        return kernel

    driver = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget('cuda', 90, 32),
    )
    with ExitStack() as stack:
        for name, replacement in {
            'torch.Tensor.is_cuda': property(lambda self: True),
            'torch.cuda.current_device': lambda: HERE,
            'torch.cuda.is_current_stream_capturing': lambda: False,
            'torch.cuda.current_stream': lambda device: None,
            'mmattn.ops.library.HAS_LIBRARY': False,
            'triton.runtime.JITFunction._do_compile': compiled,
        }.items():
            stack.enter_context(mock.patch(name, replacement, create=True))
        triton.runtime.driver.set_active(driver)
        yield


if __name__ == '__main__':
    main()
