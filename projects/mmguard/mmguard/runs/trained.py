"""The weights of a finished training, to be shared."""

from pathlib import Path

from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn

from ..checks.classes import saved_meta
from ..errors import CheckpointError
from ..weights import Translation, listed, misfits, read_file
from ..weights.files import noted_settings
from .checkpoints import READ_BY_MMGUARD, backbone_settings
from .configs import package_of
from .resuming import check_complete, whole_model_weights

#: scope of a config -> how a whole model predicts, for the card: the package's inferencer, and its argument for weights
INFERENCERS = dict(
    mmpretrain=('mmpretrain', 'ImageClassificationInferencer', 'pretrained'),
    mmdet=('mmdet.apis', 'DetInferencer', 'weights'),
    mmseg=('mmseg.apis', 'MMSegInferencer', 'weights'),
)
PREDICT = """To predict with the whole model, in this folder:

```python
from {module} import {inferencer}

import mmguard

predict = {inferencer}('config.py', {weights}='{scheme}model.safetensors')
print(predict('image.jpg'))
```

"""


def read_trained(cfg: Config, checkpoint: Path) -> dict[str, object]:
    """The weights of a training, if they are all of the config's model and no others.

    Returns:
        ``tensors``; ``settings`` of the parts that load strictly, by name; ``classes``, names and colours, or None;
        ``package`` of the model; ``predict``, a text on how a whole model predicts, or ''.

    Raises:
        CheckpointError: if the checkpoint cannot be read, has no settings, or is of another config: of another task,
            number of classes, backbone or settings.
    """
    contents = read_file(checkpoint)
    noted = noted_settings(contents)
    if not noted:
        raise CheckpointError(f'{checkpoint} has no settings: it is not a checkpoint of tools/train.py')
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        # The weights of a backbone alone, as of a distillation, have no name of a part.
        model = MODELS.build(cfg.model.backbone if '' in noted else cfg.model)
    tensors, own, package = _weights_of(model, contents, checkpoint), backbone_settings(model), package_of(cfg)
    whole = own.keys() != {''}
    module, inferencer, weights = INFERENCERS.get(package, ('', '', ''))
    predict = PREDICT.format(module=module, inferencer=inferencer, weights=weights, scheme=READ_BY_MMGUARD)
    return dict(
        tensors=tensors,
        settings={
            part: {key: value for key, value in noted.get(part, settings).items() if key in settings}
            for part, settings in own.items()
        },
        classes=_named_classes(contents) if whole else None,
        package=package,
        predict=predict if module and whole else '',
    )


def _named_classes(contents: object) -> dict[str, list] | None:
    """The names and colours of the classes that a checkpoint notes, as lists of text and of numbers."""
    for meta in saved_meta(contents):
        classes, palette = meta.get('classes'), meta.get('palette')
        if isinstance(classes, (list, tuple)):
            named = dict(classes=[str(name) for name in classes])
            if isinstance(palette, (list, tuple)):
                named['palette'] = [[int(value) for value in colour] for colour in palette]
            return named
    return None


def _weights_of(model: nn.Module, contents: dict, checkpoint: Path) -> dict[str, Tensor]:
    """The weights in a checkpoint, if they are all of a model and no others."""
    try:
        tensors = whole_model_weights(contents, model, str(checkpoint), resumes=True)
        check_complete(tensors, model, str(checkpoint))
        problems = misfits(Translation(dict(tensors)), model.state_dict())
        if problems:
            raise CheckpointError(f'{checkpoint}: {listed(problems)}')
    except CheckpointError as error:
        raise CheckpointError(
            f'{error}. Only weights of the config itself are published: name the config that {checkpoint} was trained '
            'with, and --row if it was trained with one'
        ) from error
    return dict(tensors)
