"""The registry of token mixers: layers that a backbone's config can put in the place of attention."""

import inspect
from collections.abc import Callable, Iterable, Sequence

import torch
from mmengine.registry import Registry
from torch import Tensor, nn

from ..arguments import check_whole
from ..errors import near_misses
from ..weights import is_setting

#: A token mixer is a module from tokens (B, H, W, C) to tokens of the same shape. By the names of its arguments it says
#: what it needs from the backbone, see ``build_token_mixer``; all other arguments come from the config. Its attribute
#: ``settings`` holds, by name, the arguments that no tensor shows. ``changes_with_images`` names the one of them
#: that is meant to change with the size of images: it may differ from a checkpoint's. With ``takes_prefix = True``,
#: the token mixer also maps (x, prefix) to a pair of the same shapes: prefix (B, P, C) is the class token and the
#: registers of a ViT.
TOKEN_MIXERS = Registry('token mixer', scope='mmattn')

#: the argument ``attention`` of every frame, see ``token_mixers_by_stage``
Attention = dict | Sequence[dict | Sequence[dict | None] | None] | None


def check_token_mixer(name: str, cfg: object) -> None:
    """Check the form of a token mixer's config, which a backbone has as the argument ``name``.

    Raises:
        ValueError: if it is not a dict whose type is a name or a class.
    """
    kind = cfg.get('type') if isinstance(cfg, dict) else None
    if not isinstance(kind, (str, type)):
        raise ValueError(f"{name} must be a token mixer, such as dict(type='ELSA'), not {cfg!r}")


def find_token_mixer(name: str) -> Callable[..., nn.Module] | None:
    """The token mixer of a name; None if there is none.

    Unlike ``TOKEN_MIXERS.get`` it imports nothing, because the name may come from a file that may not run code.

    Args:
        name: of a token mixer in ``TOKEN_MIXERS``; or the place of its class, as 'mmattn.layers.ELSA', which MMEngine
            writes for a class of a config.
    """
    known = TOKEN_MIXERS.module_dict
    module, _, last = name.rpartition('.')
    if not module:
        return known.get(name)
    return next(
        (
            token_mixer
            for key, token_mixer in known.items()
            if last in (key, token_mixer.__name__) and f'{token_mixer.__module__}.'.startswith(f'{module}.')
        ),
        None,
    )


def token_mixers_by_stage(attention: Attention, depths: Sequence[int], plain: Sequence[dict]) -> list[list[dict]]:
    """The configs of the token mixers that the blocks of each stage have in turn, from a frame's argument
    ``attention``.

    Args:
        attention: the config of all stages, or a list with that of each; in the place of a config, a list of those that
            the blocks of the stage have in turn. None, anywhere: the plain attention of the frame.
        depths: blocks of each stage.
        plain: config of the plain attention of each stage.

    Raises:
        ValueError: if it has another form, or a stage has fewer blocks than token mixers.
    """
    listed = isinstance(attention, (list, tuple))
    if listed and len(attention) != len(depths):
        raise ValueError(
            f'attention must be a token mixer, or a list of {len(depths)}, one per stage, not a list '
            f'of {len(attention)}'
        )
    found = []
    for i, (stage, depth, default) in enumerate(zip(attention if listed else [attention] * len(depths), depths, plain)):
        in_turn = stage if isinstance(stage, (list, tuple)) else [stage]
        place = f'attention[{i}]' if listed else 'attention'
        if not 0 < len(in_turn) <= depth:
            raise ValueError(f'{place} must have from 1 to {depth} token mixers, one per block, not {len(in_turn)}')
        found.append([default if cfg is None else cfg for cfg in in_turn])
        for at, cfg in zip(_places(place, in_turn), found[-1]):
            check_token_mixer(at, cfg)
    return found


def _places(place: str, in_turn: Sequence[object]) -> list[str]:
    return [f'{place}[{j}]' for j in range(len(in_turn))] if len(in_turn) > 1 else [place]


def build_token_mixer(cfg: dict, *, block: int = 0, window_size: int = 7, **offered: object) -> nn.Module:
    """Build a token mixer from its config.

    Args:
        cfg: ``type`` is a name that :func:`find_token_mixer` knows, or the class; other keys are its arguments.
        block: number of the block in its stage, among the blocks with this token mixer, if the config has no "block" of
            its own; offered, too. Windows are shifted in every second block: the token mixer is offered ``shift``,
            their displacement in pixels of the map.
        window_size: side of the windows, in pixels of the map; offered, too.
        offered: what else the backbone knows of the place: ``dim`` (channels), ``num_heads``, ``stride`` (of the map)
            and others. The token mixer gets what is among its arguments and not in the config.

    Raises:
        ValueError: if there is no such token mixer, it lacks an argument or has no such argument, it refuses a value,
            it is not a module, or its ``settings`` are not what checkpoints can keep.
    """
    check_token_mixer('cfg', cfg)
    given, name = dict(cfg), _name(cfg)
    token_mixer = given.pop('type')
    token_mixer = find_token_mixer(token_mixer) if isinstance(token_mixer, str) else token_mixer
    if token_mixer is None:
        known = sorted(TOKEN_MIXERS.module_dict)
        raise ValueError(
            f'there is no token mixer {cfg["type"]}; there are {", ".join(known)}, and those of the modules in '
            f'custom_imports{near_misses(name, known)}'
        )
    block = given.pop('block', block)
    check_whole(f'token mixer {name}: block', block, 0)
    offered.update(block=block, window_size=window_size)
    parameters = inspect.signature(token_mixer).parameters
    if 'shift' in parameters:
        window_size = given.get('window_size', window_size)
        check_whole(f'token mixer {name}: window_size', window_size)
        offered['shift'] = window_size // 2 * (block % 2)
    for key in given:
        if key not in parameters:
            raise ValueError(f'token mixer {name} has no argument {key}{near_misses(str(key), parameters)}')
    if given.get('dim', offered.get('dim')) != offered.get('dim'):
        raise ValueError(f'token mixer {name}: dim must be that of the map, {offered["dim"]}, not {given["dim"]!r}')
    arguments = {**{key: value for key, value in offered.items() if key in parameters}, **given}
    missing = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
        and key not in arguments
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if missing:
        raise ValueError(f'token mixer {name} needs {", ".join(missing)}: add it to its dict in the config')
    try:
        built = token_mixer(**arguments)
    except ValueError as error:
        raise ValueError(f'token mixer {name}: {error}') from error
    if not isinstance(built, nn.Module):
        raise ValueError(f'token mixer {name} must be an nn.Module, or its parameters would not train')
    noted = getattr(built, 'settings', {})
    if not isinstance(noted, dict) or not all(map(is_setting, noted.values())):
        raise ValueError(f'token mixer {name}: its settings must be a dict of numbers and texts, not {noted!r}')
    return built


def mix(token_mixer: nn.Module, x: Tensor) -> Tensor:
    """``token_mixer(x)``, (B, H, W, C) -> (B, H, W, C). A residual would broadcast another shape without a word.

    Raises:
        ValueError: if the result is not a tensor of the shape of x.
    """
    mixed = token_mixer(x)
    _check_mixed(token_mixer, x, mixed)
    return mixed


def mix_with_prefix(token_mixer: nn.Module, x: Tensor, prefix: Tensor) -> tuple[Tensor, Tensor | None]:
    """``token_mixer(x, prefix)``, (B, H, W, C) and (B, P, C) -> the same shapes.

    A token mixer that does not take prefix tokens mixes the map alone; the second result is None.

    Raises:
        ValueError: if a result is not a tensor of the shape of its input.
    """
    if not getattr(token_mixer, 'takes_prefix', False):
        return mix(token_mixer, x), None
    mixed = token_mixer(x, prefix)
    if not isinstance(mixed, tuple) or len(mixed) != 2:
        raise ValueError(f'token mixer {type(token_mixer).__name__} takes prefix tokens: it must return a pair')
    for given, made in zip((x, prefix), mixed):
        _check_mixed(token_mixer, given, made)
    return mixed


def _check_mixed(token_mixer: nn.Module, x: Tensor, mixed: object) -> None:
    if not isinstance(mixed, Tensor) or mixed.shape != x.shape:
        what = tuple(mixed.shape) if isinstance(mixed, Tensor) else f'a value of type {type(mixed).__name__}'
        raise ValueError(
            f'token mixer {type(token_mixer).__name__} must return a tensor of the shape that it gets, '
            f'{tuple(x.shape)}, not {what}'
        )


def with_prefix(prefix: Tensor | None, x: Tensor) -> Tensor:
    """All tokens, the prefix (B, P, C) first, then those of x (B, ..., C): (B, P + N, C)."""
    x = x.flatten(1, -2)
    return x if prefix is None else torch.cat((prefix, x), 1)


def token_mixer_settings(in_turn: Sequence[dict], built: Iterable[nn.Module], place: str) -> dict[str, object]:
    """What tensors do not show of the token mixers of a stage, for the ``settings`` of a backbone.

    Args:
        in_turn: the configs of the token mixers that its blocks have in turn.
        built: the modules of its blocks.
        place: the backbone's argument, as 'attention[0]'.

    Returns:
        the name of each token mixer under its place, and its settings under ``place.name``.
    """
    found: dict[str, object] = {}
    for at, cfg, token_mixer in zip(_places(place, in_turn), in_turn, built):
        noted = {key: int(cfg[key]) for key in ('block', 'num_heads', 'shift') if key in cfg}
        noted.update(getattr(token_mixer, 'settings', {}))
        if hasattr(token_mixer, 'changes_with_images'):
            noted['changes_with_images'] = token_mixer.changes_with_images
        found |= {at: _name(cfg), **{f'{at}.{key}': value for key, value in noted.items()}}
    return found


def _name(cfg: dict) -> str:
    return cfg['type'].rpartition('.')[2] if isinstance(cfg['type'], str) else cfg['type'].__name__
