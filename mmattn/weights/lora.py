"""MMPretrain's LoRAModel, which saves only the matrices that it adds to a backbone.

:mod:`mmguard.checks.config_values` refuses configs whose checkpoints would lack more than the frozen weights.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

from ..arguments import check_finite, check_rates, check_whole


def lora_part(own: Mapping[str, Tensor], given: Iterable[str]) -> dict[str, Tensor]:
    """The matrices of LoRA among a backbone's own tensors, if a checkpoint has no other names; otherwise nothing."""
    if not all('.lora_' in name for name in given):
        return {}
    return {name: value for name, value in own.items() if '.lora_' in name}


def check_lora(cfg: Mapping[str, object]) -> None:
    """Check the numbers in the config of a LoRAModel, whose rank is 0 by default.

    Raises:
        ValueError: if one is impossible, or nothing would be trained.
    """
    targets = cfg.get('targets')
    if not isinstance(targets, (list, tuple)) or not all(isinstance(target, Mapping) for target in targets):
        raise ValueError(f"targets must be a list of layers, such as [dict(type='qkv', rank=4)], not {targets!r}")
    for i, target in enumerate(targets):
        given = {'rank': 0, 'alpha': 1, 'drop_rate': 0.0, **cfg, **target}
        check_whole(f'targets[{i}]: rank', given['rank'])
        check_finite(f'targets[{i}]: alpha', given['alpha'])
        check_rates(**{f'targets[{i}]: drop_rate': given['drop_rate']})
        if not given['alpha']:
            raise ValueError(f'targets[{i}]: alpha must not be 0, which trains nothing')
