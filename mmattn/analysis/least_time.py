"""The least time that the operators of a model can take on a machine: a bound that says where a faster form is worth
looking for (Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009)."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import FlopCounterMode

from .complexity import operator_formulas

SIDE = 1024  #: of the matrices whose product gives the machine's speed
#: bytes read and written by the copies that give the speed of memory: from the second cache to beyond the last
COPIES = [4**i for i in range(9, 15)]
#: operators that write a tensor without reading it
ONLY_WRITE = {'copy_', 'fill_', 'zero_'}
#: operators that touch no memory, besides views
FREE = {'_unsafe_view', '_reshape_alias', 'empty', 'empty_like', 'empty_strided', 'new_empty', 'new_empty_strided'}


@dataclass
class Machine:
    """What a machine does in float32, with the threads that torch has."""

    products: float  #: multiply-adds a second in a product of large matrices
    copies: dict[int, float]  #: bytes of a copy, read and written -> bytes a second

    def seconds(self, multiply_adds: float, traffic: int) -> float:
        """The least time of one operator, which computes and moves memory at the same time."""
        speeds = [speed for size, speed in self.copies.items() if size >= traffic] or list(self.copies.values())[-1:]
        return max(multiply_adds / self.products, traffic / speeds[0])


@dataclass
class LeastTime:
    """Seconds that a function needs at least."""

    products: float  #: of all multiply-adds, at the speed of a large matrix product
    operators: float  #: sum over the operators of the time of their multiply-adds or of their memory, if that is longer


def measure_machine(clock: Callable[[], float] = time.perf_counter) -> Machine:
    """The speeds of this machine's CPU, the fastest of five runs. ``clock`` gives seconds."""

    def least(function: Callable[[], object], repeats: int) -> float:
        seconds = []
        for _ in range(6):  # the first one warms up
            started = clock()
            for _ in range(repeats):
                function()
            seconds.append((clock() - started) / repeats)
        return min(seconds[1:])

    a, b = torch.randn(2, SIDE, SIDE)
    copies = {}
    for size in COPIES:
        source, target = torch.ones(2, size // 8)  # half of it is read, half written
        copies[size] = size / least(partial(target.copy_, source), max(COPIES[-1] // size // 8, 1))
    return Machine(SIDE**3 / least(partial(torch.mm, a, b), 1), copies)


def least_time(function: Callable[[], object], machine: Machine) -> LeastTime:
    """The bound of a function that runs operators of torch on the CPU, backward passes included.

    Every operator is taken as it is called: it reads its inputs and writes its results once. A form that needs fewer
    operators can be faster than this bound, and so can operators whose inputs are still in a faster cache than a copy
    of their size reaches.

    Args:
        function: runs once, slowly.
        machine: see :func:`measure_machine`.
    """
    counter = Operators()
    with counter:
        function()
    return LeastTime(
        sum(each.multiply_adds for each in counter.found) / machine.products,
        sum(machine.seconds(each.multiply_adds, each.traffic) for each in counter.found),
    )


class Operator(NamedTuple):
    """A call that computes; views do not."""

    name: str
    multiply_adds: float
    traffic: int  #: bytes read and written
    half: bool  #: whether it reads numbers of 16 bits


class Operators(TorchDispatchMode):
    """A context that notes, as ``found``, each call of an operator that computes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Operator] = []
        self.formulas = operator_formulas()

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = kwargs or {}
        with FlopCounterMode(display=False, custom_mapping=self.formulas) as counter:
            out = func(*args, **kwargs)
        schema = func._schema
        name = schema.name.partition('::')[2]
        is_view = any(result.alias_info and not result.alias_info.is_write for result in schema.returns)
        if not is_view and name not in FREE:
            read = args[1:] if name in ONLY_WRITE else (args, kwargs)
            self.note(name, counter.get_total_flops() / 2, read, out)
        return out

    def note(self, name: str, multiply_adds: float, read: object, written: object) -> None:
        """Note a call that reads and writes the tensors in any nested tuples, lists and dicts."""
        read, written = ([x for x in tree_flatten(tensors)[0] if isinstance(x, Tensor)] for tensors in (read, written))
        half = any(x.is_floating_point() and x.element_size() == 2 for x in read)
        traffic = sum(map(_bytes, read + written))
        if traffic:  # Of empty tensors, there is nothing to compute.
            self.found.append(Operator(name, multiply_adds, traffic, half))


def _bytes(x: Tensor) -> int:
    """Of the numbers of a tensor in memory: those of an expanded dimension are there once."""
    count = x.element_size()
    for size, stride in zip(x.shape, x.stride()):
        count *= size if stride else min(size, 1)
    return count
