"""Values in a model's config that OpenMMLab's packages read late: in the first step, or in the first validation."""

from numbers import Integral

from mmengine.config import Config

from ..errors import InputError
from .config_types import bases, definer, find_type, listed, nested


def check_preprocessor(cfg: Config) -> None:
    """Refuse what a data preprocessor cannot do: normalise other channels than one or three, and pad images of a
    segmentor's test to no size.

    Raises:
        InputError: with what to set.
    """
    place, node = _preprocessor(cfg)
    for key in ('mean', 'std') if 'ImgDataPreprocessor' in bases(node) else ():
        numbers = node.get(key)
        if isinstance(numbers, (list, tuple)) and len(numbers) not in (1, 3):
            raise InputError(
                f'{place}.{key} has {len(numbers)} numbers, but {node["type"]} takes 1 or 3: leave out mean, std and '
                "bgr_to_rgb, and add dict(type='Normalize', mean=[...], std=[...], to_rgb=False) to the pipelines, "
                'before images are packed'
            )
    if 'SegDataPreProcessor' in bases(node) and node.get('test_cfg'):
        _check_size(node.test_cfg, f'{place}.test_cfg')


def check_padding(cfg: Config) -> None:
    """Refuse a segmentor that cannot pad the images of a batch in training.

    Raises:
        InputError: if there are neither or both of ``size`` and ``size_divisor``.
    """
    place, node = _preprocessor(cfg)
    if 'SegDataPreProcessor' in bases(node):
        _check_size(node, place)


def _check_size(node: dict, place: str) -> None:
    if (node.get('size') is None) == (node.get('size_divisor') is None):
        raise InputError(
            f'{place} must have either size, as (512, 512), or size_divisor, as 32, to which images are padded'
        )


def _preprocessor(cfg: Config) -> tuple[str, dict]:
    """The config of the data preprocessor, with its place: that of the model, or the one that MMEngine gives it."""
    model = cfg.get('model') or {}
    own = model.get('data_preprocessor') is not None
    node = (model if own else cfg).get('data_preprocessor')
    return 'model.' * own + 'data_preprocessor', node if isinstance(node, dict) else {}


def check_windows(model: dict) -> None:
    """Check how a segmentor predicts: whole images, or windows that leave out no pixel.

    Raises:
        InputError: for what MMSegmentation cannot use.
    """
    test, place = model.get('test_cfg'), 'model.test_cfg'
    # A tool may read the backbone alone.
    if definer(find_type(model), 'inference') != 'EncoderDecoder' or 'decode_head' not in model:
        return
    if not isinstance(test, dict) or test.get('mode') not in ('whole', 'slide'):
        raise InputError(f"{place}.mode must be 'whole', or 'slide' with crop_size and stride")
    if test['mode'] == 'whole':
        return
    for key in ('crop_size', 'stride'):
        sides = test.get(key)
        if not (isinstance(sides, (list, tuple)) and len(sides) == 2 and all(map(_is_side, sides))):
            raise InputError(f"{place}.{key} must be height and width of mode='slide', as (512, 512), not {sides!r}")
    if any(step > side for step, side in zip(test['stride'], test['crop_size'])):
        raise InputError(
            f'{place}.stride {tuple(test["stride"])} leaves out pixels between windows of {tuple(test["crop_size"])}: '
            'set a smaller one'
        )


def _is_side(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value > 0


def check_class_weights(model: dict) -> None:
    """Compare the weights of classes in losses with the number of classes of their heads.

    Raises:
        InputError: for the first loss with another number of weights.
    """
    for place, head in nested(model, 'model'):
        classes = head.get('num_classes')
        if 'MaskFormerHead' in bases(head) and classes is None:  # MMDetection's
            classes = head.get('num_things_classes', 80) + head.get('num_stuff_classes', 53)
        keys = ['loss_cls', 'loss']
        if definer(find_type(head), 'loss_by_feat') == 'BaseDecodeHead':  # as most of MMSegmentation's
            keys.append('loss_decode')
        losses = [loss for key in keys for loss in listed(head.get(key), f'{place}.{key}')]
        for where, loss in losses if isinstance(classes, Integral) else ():
            weights = loss.get('class_weight') if isinstance(loss, dict) else None
            if not isinstance(weights, (list, tuple)) or 'loss_decode' in where and loss.get('use_sigmoid'):
                continue  # MMSegmentation's sigmoid has other weights.
            # With a softmax, detectors and MaskFormers have one score more.
            more = 'loss_cls' in where and not loss.get('use_sigmoid')
            if len(weights) != classes + more:
                raise InputError(
                    f'{where}.class_weight has {len(weights)} numbers for {classes} classes: give one per class'
                    + ', and a last one for "no object"' * more
                )
