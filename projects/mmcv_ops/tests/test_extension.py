"""The file beside MMCV: when Python takes it, and what it says of operators that it does not have."""

import ast
import importlib.machinery
import importlib.util
import inspect
import re
import shutil
import sys
import zipfile

import pytest
from setuptools import build_meta

import mmcv_ops
from tests import ROOT

PROJECT = ROOT / 'projects' / 'mmcv_ops'


@pytest.fixture
def extension():
    spec = importlib.util.spec_from_file_location('mmcv._ext', PROJECT / 'beside_mmcv' / '_ext.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_missing_operators_are_refused_when_they_are_called(extension):
    """mmcv.ops imports, which asks for all operators, and a call of one that is missing names it and the ways out."""
    operator = extension.border_align_forward
    with pytest.raises(NotImplementedError, match='has no border_align_forward .*mim install onedl-mmcv'):
        operator(None, pool_size=1)
    assert not hasattr(extension, '__path__')  # Python and debuggers ask for such names


def test_all_operators_are_in_the_extension(extension):
    assert all(getattr(extension, name) is getattr(mmcv_ops, name) for name in mmcv_ops.__all__)


def test_a_compiled_extension_comes_first(tmp_path):
    """Python takes a compiled module before a file of Python in the same folder."""
    (tmp_path / '_ext.py').touch()
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        compiled = tmp_path / f'_ext{suffix}'
        compiled.touch()
        assert importlib.machinery.PathFinder.find_spec('_ext', [str(tmp_path)]).origin == str(compiled)
        compiled.unlink()
        importlib.invalidate_caches()


def test_arguments_have_the_names_of_compiled_mmcv():
    """mmcv.ops gives most of them by name."""
    compiled = pytest.importorskip('mmcv._ext', exc_type=ImportError)
    if compiled.__file__.endswith('.py'):
        pytest.skip('MMCV is not compiled here')
    for name in mmcv_ops.__all__:
        if hasattr(compiled, name):  # MMCV 2.1 has no NMS of lanes
            stated = re.findall(r'(\w+): ', getattr(compiled, name).__doc__.partition('->')[0])
            assert list(inspect.signature(getattr(mmcv_ops, name)).parameters) == stated, name


def test_the_package_imports_torch_torchvision_and_numpy_only():
    """It works with either family of OpenMMLab's packages, and without mmattn."""
    imported = set()
    for file in (PROJECT / 'mmcv_ops').glob('*.py'):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition('.')[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition('.')[0])
    assert imported - sys.stdlib_module_names - {'mmcv_ops'} == {'numpy', 'torch', 'torchvision'}


@pytest.mark.slow
def test_the_wheel_puts_one_file_beside_mmcv(tmp_path, monkeypatch):
    shutil.copytree(PROJECT, tmp_path / 'project')
    monkeypatch.chdir(tmp_path / 'project')
    monkeypatch.setattr(sys, 'argv', ['setup.py'])
    wheel = build_meta.build_wheel(str(tmp_path))
    assert wheel.endswith('-py3-none-any.whl')
    names = [name for name in zipfile.ZipFile(tmp_path / wheel).namelist() if '.dist-info' not in name]
    assert [name for name in names if name.startswith('mmcv/')] == ['mmcv/_ext.py']
    assert {name.partition('/')[0] for name in names} == {'mmcv', 'mmcv_ops'}
