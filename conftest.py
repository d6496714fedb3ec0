import ast
import copy
import dataclasses
import functools
import gc
import io
import itertools
import json
import logging
import lzma
import os
import re
import sys
import sysconfig
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
import yapf.yapflib.yapf_api  # noqa: F401  # before test processes start: see configs_unformatted
from hypothesis import settings
from mmengine.config import Config, utils
from mmengine.logging import MMLogger
from torch import nn

from tests import ROOT, fresh

fresh.start()

DATA = ROOT / 'tests' / 'data'

settings.register_profile('few', max_examples=3, deadline=None, derandomize=True)
settings.register_profile('many', max_examples=60, deadline=None, print_blob=True)


def pytest_configure(config) -> None:
    """Property tests try few examples, the same in every run. If slow tests are asked for, they try many random ones
    and print how to repeat one that fails."""
    settings.load_profile('few' if config.option.markexpr == 'not slow' else 'many')


@pytest.fixture(autouse=True)
def packages_are_no_garbage(request, known=[]):
    """Garbage collection looks at what tests make, not at the millions of objects of packages, which the first tests
    still import: each dataset of MMEngine starts one, which takes 0.5 s otherwise."""
    now = [request.module, len(sys.modules)]
    if known != now:
        gc.collect()
        gc.freeze()
        known[:] = now


@pytest.fixture(scope='session', autouse=True)
def configs_read_once():
    """Each file of configs/ and of OpenMMLab's packages is read once for all tests in which the environment variables
    that it and its bases name have the same values, and so is the index of a package's configs, hundreds of files."""
    read, known, being_read = Config._file2dict, {}, []
    stay_as_they_are = (ROOT / 'configs', Path(sysconfig.get_path('purelib')))
    variables = defaultdict(set)  # of a file and its bases

    def remembered(filename, *args, **kwargs):
        path = Path(filename).expanduser().absolute()
        if not any(path.is_relative_to(folder) for folder in stay_as_they_are):
            return read(filename, *args, **kwargs)
        file = path, args, frozenset(kwargs.items())

        def key():
            return file, *((name, os.environ.get(name)) for name in sorted(variables[file]))

        if key() not in known:
            variables[file].update(re.findall(r'{{\s*\$(\w+)', path.read_text()))
            being_read.append(file)
            try:
                result = read(filename, *args, **kwargs)
            finally:
                being_read.pop()
            known[key()] = result
        if being_read:
            variables[being_read[-1]] |= variables[file]
        return copy.deepcopy(known[key()])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Config, '_file2dict', staticmethod(remembered))
        patch.setattr(utils, 'load', functools.cache(utils.load))
        yield


@pytest.fixture(scope='session', autouse=True)
def autograd_sees_the_real_devices():
    """Autograd starts a thread for each GPU in the first backward pass of a process. Fake tensors on "cuda" make it
    count one that is not there, and no process with such a thread can be forked. So the first pass is before them."""
    torch.ones(1, requires_grad=True).sum().backward()


@pytest.fixture(scope='session', autouse=True)
def yaml_read_in_c():
    """PyYAML reads the metafiles ten times as fast with the parser that is written in C."""
    with pytest.MonkeyPatch.context() as patch:
        if yaml.__with_libyaml__:
            patch.setattr(yaml, 'safe_load', functools.partial(yaml.load, Loader=yaml.CSafeLoader))
        yield


@pytest.fixture(scope='session', autouse=True)
def configs_unformatted():
    """MMEngine formats a config whenever it logs or writes it, three times in a training, for a second each time. Here
    their syntax is checked alone. Processes that tests start format them.

    yapf writes a cache at its first import on a machine, which is an empty file for a moment. A second process that
    reads it then fails. So yapf is imported above, by the process that starts the others.
    """

    def checked(text, **_):
        ast.parse(text)
        return text, False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('yapf.yapflib.yapf_api.FormatCode', checked)
        patch.setattr('mmengine.config.config.FormatCode', checked, raising=False)  # MMEngine 0.10 imports it there
        yield


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that ``every`` leaves to make test-all, and skip what this torch cannot do."""
    counts = Counter()
    for item in items:
        every = item.get_closest_marker('every')
        if every and not item.get_closest_marker('slow'):
            test = item.nodeid.partition('[')[0]
            if counts[test] % every.args[0]:
                item.add_marker('slow')
            counts[test] += 1
    if torch.__version__ < (2, 3):
        for item in items:
            params = getattr(item, 'callspec', SimpleNamespace(params={})).params
            if any(value is torch.float16 for value in params.values()) and item.path.parent.name in (
                'ops',
                'layers',
                'backbones',
            ):
                item.add_marker(
                    pytest.mark.skip(
                        reason=f'torch {torch.__version__} has no float16 matrix product, '
                        'softmax and autocast on the CPU'
                    )
                )


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_visualizers(monkeypatch) -> None:
    """MMEngine names a visualizer by the second of its start: two runs in a second would share one and its folder."""
    from mmengine.visualization import Visualizer  # not above, where processes without OpenCV start

    for cls in (Visualizer, *Visualizer.__subclasses__()):
        monkeypatch.setattr(cls, '_instance_dict', OrderedDict())


INITIAL_VALUES = [name for name in dir(nn.init) if name.endswith('_') and not name.startswith('_')]


@pytest.fixture(scope='session', autouse=True)
def no_values_on_meta():
    """Tensors on "meta" have no values, but torch computes their initial ones by a hundred lines of Python each."""

    def only_values(function):
        @functools.wraps(function)
        def initialise(tensor, *args, **kwargs):
            return tensor if tensor.is_meta else function(tensor, *args, **kwargs)

        return initialise

    with pytest.MonkeyPatch.context() as patch:
        for name in INITIAL_VALUES:
            patch.setattr(nn.init, name, only_values(getattr(nn.init, name)))
        yield


@pytest.fixture
def any_weights(monkeypatch) -> None:
    """Modules are built with whatever is in memory as their weights, for tests of shapes: to compute initial values of
    a large model takes longer than its forward pass."""
    for name in INITIAL_VALUES:
        monkeypatch.setattr(nn.init, name, lambda tensor, *_, **__: tensor)


@pytest.fixture
def no_layout(monkeypatch) -> None:
    """Figures whose parts stay where they are at first: to lay them out takes more than half of the time of drawing."""
    monkeypatch.setattr('matplotlib.layout_engine.ConstrainedLayoutEngine.execute', lambda *_: None)


@pytest.fixture
def fast_mode(request) -> bool:
    """Gradcheck compares random projections of the derivatives, or all their elements if slow tests are asked for."""
    return request.config.option.markexpr == 'not slow'


@pytest.fixture
def torch_compiles() -> None:
    """Skips a test if torch is too old to compile the backbones. Sizes that other tests compiled are forgotten: torch
    takes those that change from call to call for numbers that it does not know."""
    from mmattn.export.graphs import any_size  # not above, where processes without mmattn start

    if any_size is None:
        pytest.skip(f'torch {torch.__version__} does not compile the backbones: docs/predict.md')
    torch.compiler.reset()


@pytest.fixture
def triton_runs(monkeypatch) -> None:
    """Skips a test if Triton is missing, or if there is no GPU and Triton is too old to interpret its kernels.

    Most time of the interpreter is left out. It replaces all functions of its language whenever a kernel calls a
    function, such as ``tl.sum``: the first call in a launch is enough, since nothing undoes it before the end. It also
    looks for overflows of integers, which it would tell only with the option ``debug``.
    """
    triton = pytest.importorskip('triton')
    if torch.cuda.is_available():
        return
    if int(triton.__version__.split('.')[0]) < 3:
        pytest.skip(f'Triton {triton.__version__} cannot interpret kernels without a GPU')
    from triton.runtime import interpreter

    replace, replaced = interpreter._patch_lang, set()
    called = getattr(interpreter.InterpretedFunction, 'rewritten_fn', ())

    def once(function):
        if function not in called:  # a kernel is launched
            replaced.clear()
        elif function in replaced:
            return None
        replaced.add(function)
        return replace(function)

    monkeypatch.setattr(interpreter, '_patch_lang', once)
    options = getattr(interpreter.interpreter_builder, 'options', None)
    if hasattr(options, 'sanitize_overflow') and not options.debug:
        silent = dataclasses.replace(options, sanitize_overflow=False)
        monkeypatch.setattr(interpreter.interpreter_builder, 'options', silent)


@pytest.fixture
def golden():
    """Reads random weights, inputs and the outputs of the released code, by name: see tests/data/golden/README.md."""

    def load(name: str) -> dict:
        with lzma.open(DATA / 'golden' / f'{name}.pt.xz') as file:
            return torch.load(io.BytesIO(file.read()), weights_only=True)

    return load


@pytest.fixture
def release():
    """Makes a checkpoint with the names and shapes of a released one, or with other shapes. No two tensors have the
    same value."""
    values = itertools.count(1)

    def make(name: str, shapes: Mapping[str, Sequence[int]] = {}) -> dict[str, torch.Tensor]:
        layout = json.loads((DATA / 'checkpoints' / f'{name}.json').read_text())['tensors']
        tensors = {key: torch.full(shapes.get(key, shape), next(values) / 1000) for key, shape in layout.items()}
        counters = [key for key in tensors if key.endswith('num_batches_tracked')]
        return tensors | {key: torch.tensor(next(values)) for key in counters}

    return make


@pytest.fixture
def log():
    """A list of the messages that MMEngine's logger gets."""
    messages, logger = [], MMLogger.get_current_instance()
    handler, level = logging.Handler(), logger.level
    handler.emit = lambda record: messages.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)  # A run of another test may have left a higher one.
    yield messages
    logger.removeHandler(handler)
    logger.setLevel(level)
