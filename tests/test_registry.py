"""MMEngine finds what is named ``mmattn.NAME`` by mmattn/registry.py."""

import subprocess
import sys

import pytest

from mmattn.backbones.layer_decay import LayerDecayOptimWrapperConstructor
from mmattn.detection import SimpleFeaturePyramid
from tests import ROOT

BUILD = """
import sys
from mmengine.registry import MODELS
assert 'mmattn' not in sys.modules
print(type(MODELS.build(dict(type='mmattn.NAT', arch='mini'))))
"""


def test_without_an_import():
    """A config needs no custom_imports for a backbone with the scope mmattn."""
    done = subprocess.run([sys.executable, '-c', BUILD], cwd=ROOT, capture_output=True, text=True)
    assert "<class 'mmattn.backbones.nat.NAT'>" in done.stdout, done.stderr


@pytest.mark.parametrize(
    'kind, name, found',
    [
        ('OPTIM_WRAPPER_CONSTRUCTORS', 'LayerDecayOptimWrapperConstructor', LayerDecayOptimWrapperConstructor),
        ('MODELS', 'detection.SimpleFeaturePyramid', SimpleFeaturePyramid),
        ('MODELS', 'detection.NoSuchClass', None),
        ('MODELS', 'NoSuchClass', None),
    ],
)
@pytest.mark.parametrize('package', ['mmengine', 'mmdet'])
def test_names(package, kind, name, found):
    """From the registries of MMEngine and of the packages above it; a path of modules is one from mmattn."""
    registry = getattr(pytest.importorskip(f'{package}.registry'), kind)
    if found is None:
        with pytest.raises(KeyError, match=f'mmattn.{name} is not in the '):
            registry.build(dict(type=f'mmattn.{name}'))
    else:
        assert registry.get(f'mmattn.{name}') is found
