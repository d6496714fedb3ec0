"""Compiles the C++ operators, and puts configs, tools and the model index into the wheel, as mmattn/.mim, where
OpenMMLab's `mim` looks for them.

Everything else about the package stands in pyproject.toml.
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithMim(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        mim = Path(self.build_lib) / 'mmattn' / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir(parents=True)
        for name in ('configs', 'tools'):  # tools/dev is for work on mmattn
            shutil.copytree(ROOT / name, mim / name, ignore=shutil.ignore_patterns('__pycache__', 'dev'))
        shutil.copy(ROOT / 'model-index.yml', mim)


# Apple's clang has no OpenMP, so the operators run in one thread there.
OPENMP = [] if sys.platform == 'darwin' else ['-fopenmp']
# The library uses nothing of Python's, so one serves every Python that mmattn supports: a wheel per platform. Without a
# compiler mmattn is installed all the same, and slower: see mmattn/ops/library.py.
CPU = Extension(
    'mmattn.ops._cpu',
    sorted(str(path) for path in Path('mmattn/ops').rglob('*.cpp')),
    extra_compile_args=['-std=c++17', '-O3', '-g0', *OPENMP, '-fno-math-errno', '-fno-trapping-math', '-Wno-psabi'],
    extra_link_args=OPENMP,
    optional=True,
    py_limited_api=True,
)
# MSVC has no vectors (vector.h). MMATTN_PURE=1 builds the wheel for all other platforms.
PURE = sys.platform == 'win32' or os.environ.get('MMATTN_PURE') == '1'

setup(
    cmdclass=dict(build_py=BuildWithMim),
    ext_modules=[] if PURE else [CPU],
    # A library that is newer than its code may be of other code, as after git checkout.
    options={} if PURE else dict(build_ext=dict(force=True), bdist_wheel=dict(py_limited_api='cp310')),
)
