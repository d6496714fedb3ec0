"""Tools run in the process of the tests: a process of their own imports torch and OpenMMLab's packages for seconds.
And what several tests need to run tools in other ways."""

import importlib.util
import io
import os
import runpy
import socket
import subprocess
import sys
from collections import OrderedDict
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.visualization import Visualizer

from tests import PROJECTS, PYTHONPATH, ROOT

NO_WORKERS = [
    f'{split}_dataloader.{setting}'
    for split in ('train', 'val', 'test')
    for setting in ('num_workers=0', 'persistent_workers=False')
]


def path_of(name: str) -> Path:
    """A file of tools/, or of the tools of a project."""
    return next(file for folder in (ROOT, *PROJECTS) if (file := folder / 'tools' / f'{name}.py').is_file())


def run_tool(name: str, *arguments: object, **environment: str) -> SimpleNamespace:
    """What ``python tools/NAME.py ARGUMENTS`` gives: returncode, stdout, stderr, and the sentence that ends it, None if
    all went well. What MMEngine keeps for a process is as it was afterwards."""
    out, err, code, sentence = io.StringIO(), io.StringIO(), 0, None
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        kept = [MMLogger, MessageHub, DefaultScope, Visualizer]
        for cls in kept:
            kept += cls.__subclasses__()
            patch.setattr(cls, '_instance_dict', OrderedDict())
        patch.setattr('mmengine.runner.runner.collect_env', dict)  # slow: it asks compilers for their versions
        patch.setattr(sys, 'argv', [f'{name}.py', *map(str, arguments)])
        patch.setenv('LOCAL_RANK', '0')  # tools/train.py sets it
        patch.syspath_prepend(path_of(name).parent)  # as Python does
        patch.chdir(ROOT)
        for key, value in environment.items():
            patch.setenv(key, value)
        try:
            runpy.run_path(str(path_of(name)), run_name='__main__')
        except SystemExit as end:
            sentence = end.code
            code = sentence if isinstance(sentence, int) else int(sentence is not None)
            if isinstance(sentence, str):  # Python prints it and exits with 1
                assert '\n' not in sentence
                print(sentence, file=sys.stderr)
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue(), sentence=sentence)


def dist_train(
    config: Path, processes: int | None, *arguments: object, **environment: str
) -> subprocess.CompletedProcess:
    """What ``tools/dist_train.sh CONFIG PROCESSES ARGUMENTS`` gives on the CPU, or tools/train.py if there is no number
    of processes. Configs can import modules of their folder."""
    with socket.socket() as free:
        free.bind(('', 0))
        port = str(free.getsockname()[1])
    train = [ROOT / 'tools' / 'dist_train.sh', config, str(processes)]
    if processes is None:
        train = [sys.executable, ROOT / 'tools' / 'train.py', config]
    environment = dict(
        environment,
        PORT=port,
        PATH=f'{os.path.dirname(sys.executable)}:{os.environ["PATH"]}',
        PYTHONPATH=f'{PYTHONPATH}{os.pathsep}{config.parent}',
        CUDA_VISIBLE_DEVICES='',
        OMP_NUM_THREADS='1',
    )
    return subprocess.run(
        [*train, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def load_tool(name: str) -> ModuleType:
    """``tools/NAME.py`` as a module."""
    path = path_of(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
