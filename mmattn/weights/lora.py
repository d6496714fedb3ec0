"""MMPretrain's LoRAModel, which saves only the matrices that it adds to a backbone."""

from collections.abc import Iterable, Mapping

from torch import Tensor


def lora_part(own: Mapping[str, Tensor], given: Iterable[str]) -> dict[str, Tensor]:
    """The matrices of LoRA among a backbone's own tensors, if a checkpoint has no other names; otherwise nothing."""
    if not all('.lora_' in name for name in given):
        return {}
    return {name: value for name, value in own.items() if '.lora_' in name}
