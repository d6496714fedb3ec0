"""Programs that need a process without mmattn and the packages above MMEngine.

Such a process would import torch and MMEngine's models for 5 to 10 seconds. So conftest.py forks one before it imports
more: it waits for programs, and forks itself for each.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import mmengine.model  # noqa: F401

from tests import ROOT

_server: list[Connection] = []


def start() -> None:
    """Fork the process from which programs start. It ends when this process ends, which closes the pipe."""
    loaded = {name.partition('.')[0] for name in sys.modules}
    assert not loaded & {'mmattn', 'mmguard', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'timm', 'torchvision', 'cv2'}
    ours, theirs = Pipe()
    _fork(_serve, theirs)
    theirs.close()
    _server[:] = [ours]


def run_python(code: str, *arguments: object, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    """Run code in a process of its own, as ``python -c`` does. torch and MMEngine are there already."""
    (server,) = _server
    with TemporaryDirectory() as written:
        out, err = (Path(written, name) for name in ('out', 'err'))
        server.send((code, [*map(str, arguments)], str(folder), {**os.environ, **environment}, str(out), str(err)))
        return subprocess.CompletedProcess(code, server.recv(), out.read_text(), err.read_text())


def _fork(function: Callable[..., None], *arguments: object) -> int:
    """The number of a process that runs a function, and fails where it raises an error."""
    number = os.fork()
    if number:
        return number
    status = 1
    try:
        function(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _serve(requests: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _write_to(os.devnull, os.devnull)
    os.closerange(3, requests.fileno())
    os.closerange(requests.fileno() + 1, 4096)
    with suppress(EOFError):
        while True:
            _, status = os.waitpid(_fork(_run, *requests.recv()), 0)
            requests.send(os.waitstatus_to_exitcode(status))


def _run(code: str, arguments: list[str], folder: str, environment: dict[str, str], out: str, err: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _write_to(out, err)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ['-c', *arguments]
    sys.path.insert(0, folder)
    exec(code, {'__name__': '__main__'})


def _write_to(out: str, err: str) -> None:
    """Write what is printed to files, also from C++."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (os.fdopen(number, 'w', buffering=1, closefd=False) for number in (1, 2))
