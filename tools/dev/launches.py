"""Count what backbones launch on a GPU, without one: launches, memory traffic, operations, and the least time of these.

    python tools/dev/launches.py                       # the models that the metafiles name, and their baselines
    python tools/dev/launches.py dinat-t:reference dinat-t --baseline swin-t --steps inference --operators 10
    python tools/dev/launches.py msf-vit-s --baseline timm-vit-s --card a100 --dtype float16 --batch 2 --size 800x1333

Models and baselines are those of tools/benchmark.py. "dinat-t:reference" runs operators on the backend "reference",
without the Triton kernels that a GPU has by default.

A forward pass, or for training also the backward pass, runs on fake tensors, which have shapes but no numbers. A launch
is an operator of torch that computes, although some have several kernels, or one Triton kernel. It reads its inputs and
writes its results once. The floor is the sum, over all launches, of the time that the card needs at least: for these
bytes or for the operations, whichever takes longer. Bandwidth and speed are those of data sheets; numbers of 16 bits
have tensor cores. Eager mode cannot be faster than the floor. Operations of Triton kernels are not counted.

torch's own backward pass asks for the driver of a GPU, so the tool has one of its own. Tried with torch 2.11.
"""

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (1, 2)]

import benchmark  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch._library.custom_ops import OPDEFS  # noqa: E402
from torch._library.triton import set_wrap_triton_enabled  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from mmattn.analysis.least_time import Operator, Operators  # noqa: E402
from mmattn.ops import windows  # noqa: E402


class Card(NamedTuple):
    """What a data sheet says."""

    bandwidth: float  #: bytes a second
    half: float  #: operations a second of tensor cores, float16 and bfloat16, dense
    single: float  #: in float32, without tensor cores

    def seconds(self, launch: Operator) -> float:
        """A launch takes as long at least."""
        peak = self.half if launch.half else self.single
        return max(launch.traffic / self.bandwidth, 2 * launch.multiply_adds / peak)


CARDS = {
    'h100': Card(3.35e12, 989e12, 67e12),
    'h200': Card(4.8e12, 989e12, 67e12),
    'a100': Card(2.04e12, 312e12, 19.5e12),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('models', nargs='*', metavar='MODEL', help='as of tools/benchmark.py')
    parser.add_argument('--baseline', help='the model to which the ratios are (default: as in the metafiles)')
    parser.add_argument('--size', type=benchmark.size, default=(512, 512), metavar='HxW')
    parser.add_argument('--steps', nargs='+', choices=benchmark.STEPS, default=benchmark.STEPS)
    parser.add_argument('--batch', type=int, default=16)
    parser.add_argument('--dtype', choices=('float32', 'bfloat16', 'float16'), default='bfloat16', help='of autocast')
    parser.add_argument('--card', choices=CARDS, default='h100')
    parser.add_argument('--operators', type=int, default=0, metavar='N', help='list the N that take most time')
    args = parser.parse_args()
    baselines = benchmark.benchmarked()
    models = args.models or list(baselines)
    if args.baseline is None and not set(models) <= set(baselines):
        parser.error(f'--baseline is needed for {", ".join(sorted(set(models) - set(baselines)))}')
    card, lists = CARDS[args.card], []
    found: dict[tuple[str, str], list[Operator]] = {}
    print(
        f'{args.card}, {args.dtype}, batch {args.batch}, {"x".join(map(str, args.size))}, torch {torch.__version__}\n'
    )
    print(
        f'| model | step | launches | ratio | Triton | casts | GB | TFLOP | floor | ratio |\n|{"---|" * 10}', flush=True
    )
    for model, step in itertools.product(models, args.steps):
        baseline = args.baseline or baselines[model]
        for name in (baseline, model):
            if (name, step) in found:
                continue
            built = benchmark.eager(name, SimpleNamespace(device='cpu', row=None, heads=None))
            image = args.batch, 3, *args.size
            found[name, step] = launches(built, image, step == 'training', getattr(torch, args.dtype))
            print(f'| {name} | {step} | {figures(found[name, step], found[baseline, step], card)} |', flush=True)
            lists.append(f'\n{name}, {step}:\n\n{slowest(found[name, step], args.operators, card)}')
    if args.operators:
        print(*lists, sep='\n')


def figures(found: list[Operator], of_baseline: list[Operator], card: Card) -> str:
    """The cells of a row."""
    floor, least = (sum(map(card.seconds, each)) for each in (found, of_baseline))
    cells = [
        *(len(found), f'{len(found) / len(of_baseline):.2f}'),
        *(sum(each.name.startswith(start) for each in found) for start in ('triton', '_to_copy')),
        f'{sum(each.traffic for each in found) / 1e9:.1f}',
        f'{sum(2 * each.multiply_adds for each in found) / 1e12:.2f}',
        *(f'{floor * 1e3:.1f} ms', f'{floor / least:.2f}'),
    ]
    return ' | '.join(map(str, cells))


def slowest(found: list[Operator], most: int, card: Card) -> str:
    """A table of the operators with the largest floors."""
    seconds, calls = Counter(), Counter(each.name for each in found)
    for each in found:
        seconds[each.name] += card.seconds(each)
    lines = [f'| {name} | {calls[name]} | {time * 1e3:.2f} ms |\n' for name, time in seconds.most_common(most)]
    return f'| operator | launches | floor |\n|---|---|---|\n{"".join(lines)}'


def launches(model: nn.Module, image: tuple[int, ...], training: bool, dtype: torch.dtype) -> list[Operator]:
    """What a model launches on a GPU.

    Args:
        model: on the CPU; its weights are lost.
        image: shape of the images.
        training: a forward and backward pass in training mode; else a forward pass without gradients.
        dtype: of autocast; float32: none.
    """
    model.train(training)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.set_grad_enabled(training):
        model.to_empty(device='cuda')
        x = torch.empty(image, device='cuda')
        with counted() as counter:
            with torch.autocast('cuda', dtype, enabled=dtype != torch.float32):
                outputs = model(x)
            if training:
                backward(sum(out.float().square().mean() for out in outputs))
    return counter.found


@contextmanager
def counted() -> Iterator[Operators]:
    """Launches on fake tensors of a GPU that is not here."""
    counter = Launches()

    def kernel(self, *args: object, grid: object, warmup: object, **kwargs: object) -> None:
        counter.note(f'triton {self.__name__}', 0, (args, kwargs), ())

    def kept(make: Callable[..., Tensor], *args: object) -> Tensor:
        """What is made once for many steps."""
        before = len(counter.found)
        made = make(*args)
        del counter.found[before:]
        return made

    with ExitStack() as stack:
        for name, replacement in {
            'torch.cuda.amp.common.amp_definitely_not_available': lambda: False,
            'torch.cuda.is_bf16_supported': lambda: True,
            'torch.cuda.device': nullcontext,
            'torch.cuda.current_device': lambda: 0,
            # For 16 bits, torch asks the driver for cuDNN, whose results are channels-last.
            'torch._C._select_conv_backend': lambda *_, **__: torch._C._ConvBackend.Cudnn,
            'torch._C._current_graph_task_id': lambda: 0,  # else each tensor would be computed again by itself
            'mmattn.layers.casts.TENSORS': (FakeTensor,),
            'mmattn.ops.windows.shift_mask': partial(kept, windows.shift_mask),
            'mmattn.ops.tracing.made': kept,
            'triton.runtime.JITFunction.run': kernel,
            'triton.runtime.interpreter.InterpretedFunction.run': kernel,  # with TRITON_INTERPRET=1
        }.items():
            stack.enter_context(mock.patch(name, replacement))
        stack.enter_context(set_wrap_triton_enabled(False))
        stack.enter_context(FusedAttention())
        stack.enter_context(counter)
        yield counter


class Launches(Operators):
    """Also the steps of operators that launch kernels of Triton."""

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if func.namespace == 'prim':  # the device of a tensor
            return func(*args, **(kwargs or {}))
        if func.namespace == 'mmattn':
            with self:
                return OPDEFS[func._schema.name]._abstract_fn(*args, **(kwargs or {}))
        with self:  # What such a function calls comes in one piece: a cast looks like a view then.
            out = func.decompose(*args, **(kwargs or {}))
        if out is not NotImplemented:
            return out
        return super().__torch_dispatch__(func, types, args, kwargs)


class FusedAttention(TorchFunctionMode):
    """The kernels that attention has on a GPU: to choose, torch would ask for the driver."""

    def __torch_function__(self, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None) -> object:
        return (attention if func is F.scaled_dot_product_attention else func)(*args, **(kwargs or {}))


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None) -> Tensor:
    """``F.scaled_dot_product_attention``: FlashAttention for 16 bits without a mask, else the efficient kernel."""
    inputs = [query, key, value, None if attn_mask is None else attn_mask.expand(*query.shape[:-1], key.shape[-2])]
    if torch.is_autocast_enabled('cuda'):
        inputs = [None if x is None else x.to(torch.get_autocast_dtype('cuda')) for x in inputs]
    if attn_mask is None and inputs[0].element_size() == 2:
        return torch.ops.aten._scaled_dot_product_flash_attention(*inputs[:3], dropout_p, is_causal, scale=scale)[0]
    options = torch.is_grad_enabled(), dropout_p, is_causal
    return torch.ops.aten._scaled_dot_product_efficient_attention(*inputs, *options, scale=scale)[0]


def backward(loss: Tensor) -> None:
    """Goes through the graph of a loss as torch's engine does. Gradients of weights are dropped, and not copied into
    the order of their weights."""
    uses = Counter()
    nodes = [loss.grad_fn]
    while nodes:
        for node, _ in nodes.pop().next_functions:
            nodes += [node] * (node is not None and node not in uses)
            uses[node] += 1
    gradients = {loss.grad_fn: {0: torch.ones_like(loss)}}  # node -> number of its result -> gradient
    nodes = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        for (following, place), gradient in zip(node.next_functions, passed_on(node, gradients.pop(node, {}))):
            if following is None:
                continue
            if gradient is not None:
                wanted, known = following._input_metadata[place], gradients.setdefault(following, {})
                if gradient.shape != torch.Size(wanted.shape):  # something was broadcast
                    gradient = gradient.sum_to_size(wanted.shape)
                gradient = gradient.to(wanted.dtype)
                known[place] = known[place] + gradient if place in known else gradient
            uses[following] -= 1
            if not uses[following] and following.next_functions:  # not of a weight
                nodes.append(following)


@torch.no_grad()
def passed_on(node: torch.autograd.graph.Node, known: dict[int, Tensor]) -> Sequence[Tensor | None]:
    """The gradients for each of a node's ``next_functions``."""
    if not known:
        return [None] * len(node.next_functions)
    function = node if callable(node) else node.apply  # the latter of a torch.autograd.Function
    results = function(*(known.get(place) for place in range(len(node._input_metadata))))
    results = results if isinstance(results, tuple) else (results,)
    if callable(node):
        return results
    needed = iter([result for result, is_needed in zip(results, node.needs_input_grad) if is_needed])
    return [None if following is None else next(needed) for following, _ in node.next_functions]


if __name__ == '__main__':
    main()
