"""Channels in a model's config, compared before anything is built: what neck and heads expect and what they get."""

import inspect

import torch
from torch import nn

from ..errors import InputError
from .config_types import NODE_KEYS, bases, find_type, is_of, listed, loads_strictly


def check_channels(model: dict, place: str) -> None:
    """Compare the channels that neck and heads of a model expect with those that they get, as far as these are known.

    Raises:
        InputError: for the first difference, for a part that is not a dict, or with what a backbone says.
    """
    parts = [(f'{place}.backbone', model['backbone'])]
    for key in ('neck', 'decode_head', 'auxiliary_head', 'panoptic_head', 'rpn_head', 'bbox_head', 'head'):
        parts += listed(model.get(key), f'{place}.{key}')
    for where, part in parts:
        if not isinstance(part, dict):
            raise InputError(f'{where} must be a dict, not {part!r}')
    # A segmentor of MMSegmentation gives its ``pretrained`` to the backbone.
    given = {key: model[key] for key in ('pretrained',) if model.get(key) is not None}
    channels = _backbone_channels({**model['backbone'], **given}, f'{place}.backbone')
    source, necks = 'backbone', list(listed(model.get('neck'), f'{place}.neck'))
    if necks:
        where, neck = necks[0]
        expected = neck.get('in_channels')
        known = channels and isinstance(expected, (list, tuple)) and is_of(neck, 'mmdet.', 'mmseg.')
        if known:
            deepest_first = 'YOLOV3Neck' in bases(neck)
            _compare(list(expected), list(channels[::-1] if deepest_first else channels), where, source)
        source, channels = 'neck', _neck_channels(neck, channels) if len(necks) == 1 else None
    for key in ('decode_head', 'auxiliary_head', 'panoptic_head'):
        for where, head in listed(model.get(key), f'{place}.{key}'):
            _check_decode_head(head, channels, where, source)
            _check_mask_head(head, channels, where, source)
    for key, index in (('rpn_head', 0), ('bbox_head', 0), ('head', -1)):
        head = model.get(key)
        expected = head.get('in_channels') if isinstance(head, dict) else None
        if not channels or not isinstance(expected, int):
            continue
        if 'LinearClsHead' in bases(head) or source == 'neck' and is_of(head, 'mmdet.models.dense_heads'):
            _compare(expected, channels[index], f'{place}.{key}', source)


def only_read_maps(model: dict | None, built: nn.Module) -> str:
    """The settings with which a backbone returns only the maps that the heads of a segmentor read.

    '' if that is not known, as behind a neck or for heads that choose their maps themselves, or if all are read.

    Args:
        model: the config of the segmentor.
        built: the segmentor.
    """
    stages = getattr(getattr(built, 'backbone', None), 'out_indices', None)
    if not isinstance(model, dict) or model.get('neck') or not isinstance(stages, (list, tuple)):
        return ''
    heads = [one for key in ('decode_head', 'auxiliary_head') for one in listed(model.get(key), f'model.{key}')]
    indices = {place: head.get('in_index', -1) for place, head in heads}
    if not all('BaseDecodeHead' in bases(head) and head.get('in_channels') is not None for _, head in heads):
        return ''
    every = {place: [index] if isinstance(index, int) else list(index) for place, index in indices.items()}
    if any(isinstance(head['in_channels'], int) != isinstance(indices[place], int) for place, head in heads):
        return ''
    read = sorted({index % len(stages) for each in every.values() for index in each})
    if not read or len(read) == len(stages):
        return ''
    settings = [f'model.backbone.out_indices={tuple(stages[index] for index in read)}']
    for place, each in every.items():
        new = [read.index(index % len(stages)) for index in each]
        settings.append(f'{place}.in_index={new[0] if isinstance(indices[place], int) else new}')
    return ', '.join(settings)


def _compare(expected: int | list[int], given: int | list[int], place: str, source: str) -> None:
    if expected != given:
        raise InputError(
            f'{place}.in_channels is {expected}, but the {source} returns maps of {given} channels: set it to {given}'
        )


def _backbone_channels(node: dict, place: str) -> tuple[int, ...] | None:
    """The channels of the maps that a strict module returns, as it can be built on "meta"; None for others."""
    cls = find_type(node)
    if not (inspect.isclass(cls) and loads_strictly(cls)):
        return None
    arguments = {key: value for key, value in node.items() if key not in NODE_KEYS}
    try:
        with torch.device('meta'):
            return getattr(cls(**arguments), 'out_channels', None)
    except (TypeError, ValueError) as error:
        raise InputError(f'{place} ({node["type"]}): {error}') from error


def _neck_channels(neck: dict, channels: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The channels of the maps that an FPN or GlobalAveragePooling returns; None for any other neck."""
    name = ''.join(bases(neck)[:1])
    if name == 'GlobalAveragePooling':
        return channels
    given = neck.get('out_channels'), neck.get('num_outs')
    if name == 'FPN' and all(isinstance(number, int) for number in given):
        return (given[0],) * given[1]
    return None


def _check_decode_head(head: dict, channels: tuple[int, ...] | None, place: str, source: str) -> None:
    """Check ``in_channels`` and ``in_index`` of a head of MMSegmentation, which chooses from the maps of the source."""
    if 'BaseDecodeHead' not in bases(head):
        return
    if head.get('num_classes') == 1:
        raise InputError(
            f'{place}.num_classes is 1, but the background is a class, too: set num_classes=2, and out_channels=1 for '
            'one sigmoid channel'
        )
    if 'in_channels' not in head:
        return
    expected, index = head['in_channels'], head.get('in_index', -1)
    if not isinstance(expected, int) and 'in_index' not in head:
        return  # for the head to choose
    if isinstance(expected, int) != isinstance(index, int):
        raise InputError(f'{place}.in_channels is {expected}, but in_index is {index}: both must be numbers, or lists')
    expected, index = ([expected], [index]) if isinstance(expected, int) else (list(expected), list(index))
    if len(expected) != len(index):
        raise InputError(f'{place} has {len(expected)} in_channels, but {len(index)} in_index: give one per map')
    if channels is None:
        return
    if not all(-len(channels) <= i < len(channels) for i in index):
        raise InputError(f'{place}.in_index is {head["in_index"]}, but the {source} returns {len(channels)} maps')
    given = [channels[i] for i in index]
    if isinstance(head['in_channels'], int):
        expected, given = expected[0], given[0]
    _compare(expected, given, place, source)


def _check_mask_head(head: dict, channels: tuple[int, ...] | None, place: str, source: str) -> None:
    """Check ``in_channels`` of a head of MaskFormer or Mask2Former, which takes all maps."""
    if 'MaskFormerHead' in bases(head) and channels:
        _compare(list(head.get('in_channels', channels)), list(channels), place, source)
