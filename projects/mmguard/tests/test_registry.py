"""MMEngine finds what is named ``mmguard.NAME`` by mmguard/registry.py."""

import pytest

from mmguard.checks.arrays import LoadImageFromNpyFile
from mmguard.runs import AtomicCheckpointHook, BFloat16OptimWrapper


@pytest.mark.parametrize(
    'kind, cls',
    [('HOOKS', AtomicCheckpointHook), ('OPTIM_WRAPPERS', BFloat16OptimWrapper), ('TRANSFORMS', LoadImageFromNpyFile)],
    ids=['hook', 'wrapper', 'transform'],
)
@pytest.mark.parametrize('package', ['mmengine', 'mmdet'])
def test_names(package, kind, cls):
    """A config needs no custom_imports for the hook, the optimizer's wrapper and the transform."""
    registry = getattr(pytest.importorskip(f'{package}.registry'), kind)
    assert registry.get(f'mmguard.{cls.__name__}') is cls
