"""Layer-wise decay of the learning rate, for detectors, segmentors and classifiers."""

from numbers import Real

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from ..errors import InputError, near_misses
from ..packages import PARAMWISE_KEYS

#: the lowest rate that is taken; papers use 0.4 and more. With a much lower one, the backbone does not train.
LOWEST = 0.01


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """MMEngine's constructor with layer-wise decay of the learning rate in the backbone.

    Neck and heads have the full learning rate. In the backbone, it is multiplied by ``layer_decay_rate`` in the last
    block, by the square of it in the block before, and so on to the stem. The backbone must have a method
    ``get_layer_depth``, as backbones of mmattn and MMPretrain do. For classifiers, the learning rates are those of
    MMPretrain's ``LearningRateDecayOptimWrapperConstructor``.

    Args:
        optim_wrapper_cfg: as for MMEngine's ``DefaultOptimWrapperConstructor``; the optimizer must have an ``lr``.
        paramwise_cfg: as for the same class, and ``layer_decay_rate``, from ``LOWEST`` to 1.

    Raises:
        InputError: if a key or value cannot be used, or if the backbone has no method ``get_layer_depth``.
    """

    def _validate_cfg(self) -> None:
        if not isinstance(self.paramwise_cfg, dict):
            raise InputError(f'paramwise_cfg must be a dict, not {self.paramwise_cfg!r}')
        super()._validate_cfg()
        known = PARAMWISE_KEYS | {'layer_decay_rate'}
        for key in set(self.paramwise_cfg) - known:
            raise InputError(f'paramwise_cfg of {type(self).__name__} has no key {key}{near_misses(key, known)}')
        rate = self.paramwise_cfg.get('layer_decay_rate')
        if isinstance(rate, bool) or not isinstance(rate, Real) or not LOWEST <= rate <= 1:
            raise InputError(
                f'layer_decay_rate of paramwise_cfg must be from {LOWEST} to 1, not {rate!r}; frozen_stages of the '
                'backbone keeps weights as they are'
            )
        if self.base_lr is None:
            raise InputError(f'{type(self).__name__} needs a learning rate: set optim_wrapper.optimizer.lr')

    def add_params(self, params: list[dict], module: nn.Module, prefix: str = '', **kwargs) -> None:
        super().add_params(params, module, prefix, **kwargs)
        if prefix:  # MMEngine calls this method again for each part of the model.
            return
        backbone = getattr(module, 'backbone', None)
        if not hasattr(backbone, 'get_layer_depth'):
            raise InputError(
                f'layer_decay_rate needs a backbone with a method get_layer_depth, and {type(backbone).__name__} has '
                f'none: leave out constructor={type(self).__name__!r}'
            )
        scales, owner = {}, backbone.get_layer_depth.__self__  # not a wrapper such as LoRAModel, but the backbone
        for name, parameter in owner.named_parameters():
            depth, depths = owner.get_layer_depth(name)
            scales[parameter] = self.paramwise_cfg['layer_decay_rate'] ** (depths - depth - 1)
        for group in params:
            group['lr'] = group.get('lr', self.base_lr) * scales.get(group['params'][0], 1.0)
        print_log(f'The stem has {min(scales.values()):.3g} times the learning rate of the heads.', logger='current')


def layer_depths(backbone: nn.Module) -> tuple[dict[str, int], int]:
    """The depths of all parameters of a backbone, by name, and the number of depths; see its ``get_layer_depth``."""
    # Modules are registered in the order of the forward pass, output norms last. A wrapper can have the attributes of
    # its block, so a block is counted by its first parameter.
    blocks = [module for module in backbone.modules() if getattr(module, 'is_block', False)]
    firsts = dict.fromkeys(next(block.parameters()) for block in blocks)
    starts = {parameter: depth for depth, parameter in enumerate(firsts, start=1)}
    last = set(blocks[-1].parameters())
    depth, depths = 0, {}
    for name, parameter in backbone.named_parameters():
        depth = starts.get(parameter, depth)
        depths[name] = depth if depth < len(starts) or parameter in last else depth + 1
    return depths, len(starts) + 2
