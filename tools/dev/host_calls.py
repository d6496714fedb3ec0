"""Count and time what the host does in a step on a GPU, without one.

    python tools/dev/host_calls.py                                     # the models of gpu_check.py and their baselines
    python tools/dev/host_calls.py dinat-t swin-t --functions 20       # with functions that are called most

"Calls" are those of functions of Python, "ms" is the least processor time of a step, in which models take turns. In
eager mode, the host must prepare the launches faster than the GPU works them off.

Models run on the CPU, whose tensors say that they are on a GPU. Triton's kernels are looked up and launched as usual,
but compute nothing. Nor do products, convolutions, norms and softmaxes of torch, each of which costs a call of Python
instead of a launch. So that the other operators have little to compute, models have an eighth of their channels, and
the image is small; DiNAT's kernel has one pixel, as no map is padded in its usual sizes. Launches and allocations of a
GPU are not in these times. Tried with torch 2.11 and Triton 3.6.
"""

import argparse
import cProfile
import inspect
import os
import pstats
import sys
import time
import warnings
from collections.abc import Callable, Iterator
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
from mmengine.registry import MODELS  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import CompiledKernel  # noqa: E402

HERE = torch.zeros(0).get_device()
OPTIONS = SimpleNamespace(device='cpu', row=None, heads=None, dtype='bfloat16', batch=1)
#: of baselines, an eighth of their channels
NARROW = {
    'mmdet.SwinTransformer': dict(embed_dims=12),
    'mmdet.PyramidVisionTransformerV2': dict(embed_dims=8),
    'mmdet.ResNet': dict(base_channels=8, stem_channels=8),
    'timm': dict(embed_dim=48),
}
CHANNELS = 'embed_dim', 'embed_dims', 'stem_dim', 'base_channels', 'stem_channels'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('models', nargs='*', default=gpu_check.models(), metavar='MODEL', help='as of benchmark.py')
    parser.add_argument('--functions', type=int, default=0, metavar='N', help='list the N that are called most')
    parser.add_argument('--runs', type=int, default=20, help='of which times are the least')
    args = parser.parse_args()
    peers = gpu_check.PEERS
    built = {
        name: narrow(name) for name in dict.fromkeys(x for model in args.models for x in (peers.get(model), model) if x)
    }
    torch.set_num_threads(1)
    print('| step | model | peer | calls | ratio | ms | ratio |\n|---|---|---|---|---|---|---|')
    for step in benchmark.STEPS:
        with pretended_gpu():
            seconds, found = times(built, step, args.runs), {name: calls(built[name], step) for name in built}
        for model in built:
            own, peer = (total(found[model]), seconds[model] * 1e3), peers.get(model)
            cells = [f'{own[0]:,}', '', f'{own[1]:.1f}', '']
            if peer:
                cells[1::2] = f'{own[0] / total(found[peer]):.2f}', f'{seconds[model] / seconds[peer]:.2f}'
            print('|', ' | '.join([step, model, peer or '', *cells]), '|', flush=True)
        for model in args.models if args.functions else ():
            print(f'\n{model}, {step}:')
            rows = sorted(functions(found[model]), reverse=True)
            print(*(f'{count:6} {name}' for count, name in rows[: args.functions]), sep='\n')


def narrow(name: str) -> nn.Module:
    """A model of benchmark.py with an eighth of its channels."""
    usual = benchmark.backbone_config

    def config(*args: object) -> dict:
        cfg = dict(usual(*args))
        if cfg['type'] in NARROW:
            return cfg | NARROW[cfg['type']]
        kind = MODELS.get(cfg['type'])
        argument = getattr(kind, 'arch_argument', 'arch')
        default = next(p[argument] for c in kind.__mro__ if argument in (p := inspect.signature(c).parameters)).default
        arch = kind.resolve_arch(cfg.get(argument, default))
        for key in CHANNELS & arch.keys():
            arch[key] = tuple(n // 8 for n in arch[key]) if isinstance(arch[key], tuple) else arch[key] // 8
        return cfg | {argument: arch} | ({'kernel_size': 1} if 'dilations' in arch else {})

    with mock.patch('benchmark.backbone_config', config):
        return benchmark.eager(name, OPTIONS)


def times(models: dict[str, nn.Module], step: str, runs: int) -> dict[str, float]:
    """The least seconds of a step of each, after two others."""
    image, seconds = benchmark.image(64, 64, OPTIONS), {name: [] for name in models}
    for _ in range(runs + 2):
        for name, model in models.items():
            started = time.process_time()
            benchmark.run(model, image, step, OPTIONS)
            seconds[name].append(time.process_time() - started)
    return {name: min(own[2:]) for name, own in seconds.items()}


def calls(model: nn.Module, step: str) -> pstats.Stats:
    """What is called in a step."""
    profile = cProfile.Profile()
    profile.runcall(benchmark.run, model, benchmark.image(64, 64, OPTIONS), step, OPTIONS)
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
        for hook in (enter, leave):
            if hook is not None:
                hook(metadata)


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
            'torch.Tensor.is_cuda': True,
            'torch.cuda.current_device': lambda: HERE,
            'torch.cuda.is_current_stream_capturing': lambda: False,
            'torch.cuda.current_stream': lambda device: None,
            'mmattn.ops.library.HAS_LIBRARY': False,
            'triton.runtime.JITFunction._do_compile': compiled,
        }.items():
            stack.enter_context(mock.patch(name, replacement, create=True))
        triton.runtime.driver.set_active(driver)
        stack.callback(without_products()._destroy)
        yield


def without_products() -> torch.library.Library:
    """Operators of torch that compute much have results of the right shapes. They are as long as it holds."""

    def convolved(x: Tensor, weight: Tensor, bias, stride, padding, dilation, *_: object) -> Tensor:
        axes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation)
        sizes = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes]
        last = any(each.is_contiguous(memory_format=torch.channels_last) for each in (x, weight))
        layout = torch.channels_last if last else torch.contiguous_format
        return x.new_empty(len(x), len(weight), *sizes).contiguous(memory_format=layout)

    def of_convolved(grad: Tensor, x: Tensor, weight: Tensor, *args: object) -> tuple[Tensor | None, ...]:
        made = torch.empty_like(x), torch.empty_like(weight), weight.new_empty(len(weight))
        return tuple(each if wanted else None for each, wanted in zip(made, args[-1]))

    def normed(x: Tensor, shape: list[int], *_: object) -> tuple[Tensor, Tensor, Tensor]:
        mean, inverse = x.new_empty(2, *x.shape[: -len(shape)], *[1] * len(shape), dtype=torch.float32)
        return torch.empty_like(x, memory_format=torch.contiguous_format), mean, inverse

    def attended(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        lse = query.new_empty(query.shape[0], query.shape[2], query.shape[1], dtype=torch.float32)
        return torch.empty_like(query), lse.transpose(1, 2)

    def like(*places: int) -> Callable:
        return lambda *args, **_: tuple(map(torch.empty_like, (args[i] for i in places)))

    attention = '_scaled_dot_product_flash_attention_for_cpu'
    library = torch.library.Library('aten', 'IMPL', 'CPU')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # torch says that operators are replaced
        for name, function in {
            'mm': lambda a, b: a.new_empty(a.shape[0], b.shape[1]),
            'addmm': lambda _, a, b, **__: a.new_empty(a.shape[0], b.shape[1]),
            'bmm': lambda a, b: a.new_empty(*a.shape[:2], b.shape[2]),
            '_softmax': lambda x, *_: torch.empty_like(x),
            '_softmax_backward_data': lambda grad, *_: torch.empty_like(grad),
            'convolution': convolved,
            'convolution_backward': of_convolved,
            'native_layer_norm': normed,
            'native_layer_norm_backward': like(1, 5, 6),
            attention: attended,
            f'{attention}_backward': like(1, 2, 3),
        }.items():
            library.impl(name, function)
    return library


if __name__ == '__main__':
    main()
