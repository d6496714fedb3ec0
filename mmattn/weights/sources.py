"""How a checkpoint is named: by a file, an address, or the name of published weights in timm or torchvision.

- ``timm:swin_tiny_patch4_window7_224.ms_in1k``, as ``timm.list_pretrained()`` has them; without the part after the dot,
  timm's default for the model
- ``torchvision:Swin_T_Weights.IMAGENET1K_V1``, as ``torchvision.models.get_weight`` takes it
- ``torchvision://NAME`` and ``open-mmlab://NAME``, as in configs of OpenMMLab
- ``https://HOST/FILE``
- ``hf-hub:OWNER/REPOSITORY``, ``hf-hub:OWNER/REPOSITORY/FILE`` or ``hf-hub:OWNER/REPOSITORY/FOLDER/``, for models on
  the Hugging Face Hub, as timm has them; ``@REVISION`` after REPOSITORY names a branch, a tag, a commit or, as
  ``@refs/pr/1``, a pull request. "/" in the name of a branch is written ``%2F``. In the place of ``hf-hub:`` may stand
  ``hf://``, as in huggingface_hub
- the path of a file

Nothing here uses the network.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError, near_misses
from ..privacy import without_secrets

if TYPE_CHECKING:
    from timm.models import PretrainedCfg


def place_of(source: str) -> str:
    """The address (https://, hf:// ...) or the path that a source names.

    Raises:
        CheckpointError: for a name that timm, torchvision or OpenMMLab do not have, or have no weights for, and for
            Google Drive.
    """
    source = re.sub(r'^[a-zA-Z][\w+.-]*://', lambda scheme: scheme[0].lower(), source)
    source = re.sub(r'^hf[-_]hub:', 'hf://', source)
    if source.startswith('torchvision://'):
        from mmengine.runner.checkpoint import get_torchvision_models  # imported here, since it needs OpenCV

        name, models = source.removeprefix('torchvision://'), get_torchvision_models()
        if name not in models:
            raise CheckpointError(f'torchvision has no weights {name}, of {source}{near_misses(name, models)}')
        return models[name]
    if source.startswith(('open-mmlab://', 'openmmlab://')):
        from mmengine.runner.checkpoint import get_deprecated_model_names, get_external_models

        name, models = source.partition('://')[2], get_external_models()
        name = get_deprecated_model_names().get(name, name)
        if name not in models:
            raise CheckpointError(f'OpenMMLab has no weights {name[:300]}{near_misses(name, models)}')
        return models[name]
    if source.startswith('torchvision:'):
        return _torchvision_address(source.removeprefix('torchvision:'))
    if source.startswith('timm:'):
        return _timm_place(source.removeprefix('timm:'))
    if re.match(r'https?://(drive|docs)\.(usercontent\.)?google\.com/', source, re.IGNORECASE):
        known = ', '.join(f'{files} of {page}' for files, page in _releases().values())
        raise CheckpointError(
            f'{without_secrets(source)[:300]} is on Google Drive, which gives files to browsers only: download it '
            f'there and give its path{f" ({known})" if known else ""}'
        )
    return source


def check_source(source: str | Path, scratch: str = 'init_cfg=None') -> None:
    """Check that a file is there, or that a name is known. Servers are not asked.

    Args:
        scratch: the setting that starts without weights; '' if there is none.

    Raises:
        CheckpointError: if not; the sentence says what to do.
    """
    place = place_of(str(source))
    if '://' not in place and not os.path.exists(os.path.expanduser(place)):
        raise CheckpointError(missing_file(place, scratch))


def missing_file(path: str, scratch: str) -> str:
    """A sentence on a checkpoint that is not there, and on where to get it if it is one of the known releases."""
    name = Path(path).name
    if name == path and _has_weights(name):
        advice = f'timm:{name} names the weights that timm publishes'
    elif name == path and re.fullmatch(r'\w+_Weights\.\w+', name):
        advice = f'torchvision:{name} names the weights that torchvision publishes'
    else:
        advice = _where_released(name) or 'put it there'
    otherwise = f', or set {scratch} to start from scratch' if scratch else ''
    return f'there is no checkpoint {path[:300]}: {advice}{otherwise}'


def timm_release(name: str) -> 'PretrainedCfg | None':
    """What timm notes about a model's weights; None for a model of which it has no notes.

    Raises:
        CheckpointError: if timm does not know the name.
    """
    import timm  # it takes seconds, as torchvision does, and most weights are a file

    base, version = name.partition('.')[0], f'timm {timm.__version__}'
    # Those of mmattn.timm are not timm's own.
    if not timm.is_model(base) or timm.model_entrypoint(base).__module__.startswith('mmattn.'):
        where = _where_released(name)
        hint = f': {where} and give its path' if where else near_misses(base, timm.list_models())
        raise CheckpointError(f'{version} has no model {name[:300]}{hint}')
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        hint = near_misses(name, timm.list_pretrained(f'{base}.*'))
        raise CheckpointError(f'{version} has no weights {name[:300]}{hint}') from error


def _has_weights(name: str) -> bool:
    """Whether timm has published weights of a name, which may be anything."""
    import timm

    try:
        release = timm.get_pretrained_cfg(name)
    except RuntimeError:
        return False
    return release is not None and bool(release.has_weights)


def _timm_place(name: str) -> str:
    release = timm_release(name)
    if not _has_weights(name):
        raise CheckpointError(f'timm publishes no weights {name}: it has only the model')
    if release.file:  # of a model that the user registered
        return str(release.file)
    if release.hf_hub_id:
        return f'hf://{release.hf_hub_id}' + (f'/{release.hf_hub_filename}' if release.hf_hub_filename else '')
    if release.custom_load or release.url.endswith('.npz'):
        raise CheckpointError(
            f'the weights timm:{name} are in a format that only timm reads: write '
            f'torch.save(timm.create_model("{name}", pretrained=True).state_dict(), FILE) in Python and give the path '
            'of the file'
        )
    return release.url


def _torchvision_address(name: str) -> str:
    import torchvision

    models = torchvision.models
    if name in models.list_models():
        weights = ' or '.join(f'torchvision:{each}' for each in models.get_model_weights(name))
        raise CheckpointError(f'torchvision:{name} is a model: name its weights, {weights or "but it has none"}')
    try:
        return models.get_weight(name).url
    except (ValueError, KeyError) as error:
        known = {str(each) for model in models.list_models() for each in models.get_model_weights(model)}
        raise CheckpointError(
            f'torchvision {torchvision.__version__} has no weights {name[:300]}{near_misses(name, known)}'
        ) from error


def _releases() -> dict[str, tuple[str, str]]:
    """``RELEASES`` of the models that are registered, see :class:`mmattn.weights.StrictModule`."""
    from mmengine.registry import MODELS

    published = [getattr(getattr(cls, 'weights', None), 'RELEASES', {}) for cls in MODELS.module_dict.values()]
    return {pattern: release for releases in published for pattern, release in releases.items()}


def _where_released(name: str) -> str:
    """Where to get weights of a name that Google Drive has, as the end of a sentence."""
    for pattern, (files, page) in _releases().items():
        if re.search(pattern, name, re.IGNORECASE):
            return f'download it in a browser from {page}, which has links to Google Drive ({files})'
    return ''
