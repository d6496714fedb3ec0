"""Which of OpenMMLab's packages mmattn needs; they are checked where they are needed."""

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions

from .errors import InputError, describe

#: import name -> (lowest version that works, its distribution in the family that is maintained, and in OpenMMLab's own)
PACKAGES = {
    'mmengine': ('0.10.0', 'onedl-mmengine', 'mmengine'),
    'mmcv': ('2.1.0', 'onedl-mmcv', 'mmcv'),
    'mmdet': ('3.3.0', 'onedl-mmdetection', 'mmdet'),
    'mmseg': ('1.2.0', 'onedl-mmsegmentation', 'mmsegmentation'),
    'mmpretrain': ('1.2.0', 'onedl-mmpretrain', 'mmpretrain'),
}
#: keys of paramwise_cfg that MMEngine's optimizer constructor reads
PARAMWISE_KEYS = {
    *('custom_keys', 'bias_lr_mult', 'bias_decay_mult', 'norm_decay_mult', 'dwconv_decay_mult', 'flat_decay_mult'),
    *('dcn_offset_lr_mult', 'bypass_duplicate'),
}


class MissingPackage(InputError, ImportError):
    """A package is missing, too old or incomplete; the message says what to install."""


def require(package: str, purpose: str) -> None:
    """Make sure that a package of OpenMMLab is installed and new enough.

    Args:
        package: import name, a key of ``PACKAGES``.
        purpose: who needs it, the subject of "... needs".

    Raises:
        MissingPackage: if it is missing or too old, or of both families, which overwrite each other's files.
    """
    lowest, maintained, original = PACKAGES[package]
    if all(any(distributions(name=name)) for name in (maintained, original)):
        raise MissingPackage(
            f'{purpose} needs {package}, which {maintained} and {original} both installed, over each other: '
            f'pip uninstall {maintained} {original}, then install the one of the family that the other packages have'
        )
    install = (
        f'pip install --upgrade {maintained}, or {original} if the environment has other packages of OpenMMLab itself'
    )
    try:
        # mmattn_mmcv_ops without MMCV is a folder mmcv without a version.
        version = getattr(importlib.import_module(package), '__version__', None)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        version = None
    if version is None:
        raise MissingPackage(f'{purpose} needs {package} {lowest} or newer, which is not installed: {install}.')
    if version_numbers(version) < version_numbers(lowest):
        raise MissingPackage(f'{purpose} needs {package} {lowest} or newer, but {version} is installed: {install}.')


def require_ops(purpose: str) -> None:
    """Make sure that mmcv has its operators (NMS, RoIAlign ...), compiled or those of ``projects/mmcv_ops``.

    Raises:
        MissingPackage: if they do not import.
    """
    try:
        importlib.import_module('mmcv.ops')
    except (ImportError, AssertionError) as error:  # an assertion, if an old extension lacks an operator
        todo = 'pip install ./projects/mmcv_ops in a clone of mmattn'
        problem = (
            f'which do not import ({describe(error)}): {todo}'
            if isinstance(error, ModuleNotFoundError)
            else f'whose compiled file mmcv/_ext does not load ({describe(error)}), since it was compiled for another '
            f'torch or is damaged: install mmcv again, or delete that file and {todo}'
        )
        raise MissingPackage(f'{purpose} needs the operators of mmcv, {problem}') from None


def require_models(package: str, purpose: str) -> None:
    """Make sure that the models of a package of OpenMMLab import. MMEngine's registries can hide the error.

    Raises:
        MissingPackage: if they do not.
    """
    try:
        importlib.import_module(f'{package}.models')
    except Exception as error:  # a module that is imported can raise any error
        if getattr(error, 'name', None) in ('mmcv._ext', '_ext'):  # it is missing, or does not load
            require_ops(purpose)
        # mmpretrain, which the others import, uses functions that transformers 5 removed.
        transformers = next((found.version for found in distributions(name='transformers')), '0')
        todo = f": transformers {transformers} is too new for mmpretrain, pip install 'transformers<5'"
        todo = todo if version_numbers(transformers) >= (5,) else ''
        raise MissingPackage(
            f'{purpose} needs {package}.models, which cannot be imported ({describe(error)}){todo}'
        ) from error


def require_project(name: str, purpose: str) -> None:
    """Make sure that a project of mmattn's repository is installed, by its folder in ``projects/``.

    Raises:
        MissingPackage: if it is not.
    """
    if importlib.util.find_spec(f'mmattn_{name}') is None:
        raise MissingPackage(f'{purpose} needs mmattn_{name}: pip install ./projects/{name}, in a clone of mmattn')


def require_sharding(purpose: str) -> None:
    """Make sure that torch reads the tensors of sharded checkpoints without running code in the files.

    Raises:
        MissingPackage: if it is older than 2.6, the first version that does.
    """
    version = importlib.import_module('torch').__version__
    if version_numbers(version) < (2, 6):
        raise MissingPackage(f'{purpose} needs torch 2.6 or newer, and this is {version}: update torch')


@contextmanager
def mmseg_bases() -> Iterator[None]:
    """Let MMEngine find bases ``mmseg::...`` of configs that are read in the block, also from onedl-mmsegmentation.

    MMEngine looks for a distribution named mmsegmentation, and no argument sets another name. Its table of names is as
    before at the end of the block::

        with mmattn.mmseg_bases():
            cfg = Config.fromfile('my_config.py')
    """
    from mmengine.config.utils import MODULE2PACKAGE
    from mmengine.utils import is_installed

    distribution = MODULE2PACKAGE['mmseg']
    if not is_installed(distribution):
        MODULE2PACKAGE['mmseg'] = 'mmseg'
    try:
        yield
    finally:
        MODULE2PACKAGE['mmseg'] = distribution


def version_numbers(version: str) -> tuple[int, ...]:
    """(2, 11, 0) of '2.11.0+cpu'."""
    return tuple(int(part) for part in re.findall(r'\d+', version)[:3])
