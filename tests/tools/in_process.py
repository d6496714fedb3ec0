"""Tools run in the process of the tests: a process of their own imports torch and OpenMMLab's packages for seconds."""

import io
import runpy
import subprocess
import sys
from collections import OrderedDict
from contextlib import redirect_stderr, redirect_stdout

import pytest
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.visualization import Visualizer

from tests import ROOT


def run_tool(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    """What ``python tools/NAME.py ARGUMENTS`` gives. What MMEngine keeps for a process is as it was afterwards."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        kept = [MMLogger, MessageHub, DefaultScope, Visualizer]
        for cls in kept:
            kept += cls.__subclasses__()
            patch.setattr(cls, '_instance_dict', OrderedDict())
        patch.setattr('mmengine.runner.runner.collect_env', dict)  # slow: it asks compilers for their versions
        patch.setattr(sys, 'argv', [f'{name}.py', *map(str, arguments)])
        patch.setenv('LOCAL_RANK', '0')  # tools/train.py sets it
        patch.chdir(ROOT)
        for key, value in environment.items():
            patch.setenv(key, value)
        try:
            runpy.run_path(str(ROOT / 'tools' / f'{name}.py'), run_name='__main__')
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
