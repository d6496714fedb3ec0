"""VOLO's head, and ELSA-VOLO as a model of timm."""

import re
from collections.abc import Callable

from timm.layers import get_device_dtype
from torch import Tensor, nn

from ..backbones import ELSAVOLO
from ..layers import ClassAttention
from .classifier import TimmClassifier


class ClassAttentionHead(ClassAttention, nn.Module):
    """VOLO's head, with the methods of timm's heads. Its tensors have the names of ``VOLOHead``'s.

    Scores are those of the class token, plus half the largest of all other tokens per class.

    Args:
        in_features: channels C of the map.
        num_classes: number of classes K; 0: no classifier.
        num_heads, mlp_ratio, attn_drop_rate: of class attention.
        pool_type: 'token': the class token; 'avg': the mean of all tokens; '': all tokens, each classified alone.
        drop_rate: dropout before the classifier.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_heads: int,
        mlp_ratio: float,
        attn_drop_rate: float = 0.0,
        pool_type: str = 'token',
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.add_class_attention(in_features, num_heads, mlp_ratio, attn_drop_rate=attn_drop_rate)
        self.drop = nn.Dropout(drop_rate)
        self.reset(num_classes, pool_type, in_features=in_features)

    def reset(
        self, num_classes: int, pool_type: str | None = None, reset_other: bool = False, in_features: int | None = None
    ) -> None:
        """Replace the classifier, the pooling if it is given, and with ``reset_other`` remove class attention.

        Raises:
            ValueError: if the model has no such pooling.
        """
        if reset_other:
            self.cls_token, self.post_network = None, nn.ModuleList()
        if pool_type is not None:
            kinds = ('avg', '') if self.cls_token is None else ('token', 'avg', '')
            if pool_type not in kinds:
                raise ValueError(f'global_pool must be one of {", ".join(map(repr, kinds))}, not {pool_type!r}')
            self.pool_type = pool_type
        if in_features is not None:
            self.num_features = in_features
        place = get_device_dtype(self)
        linear = lambda: nn.Linear(self.num_features, num_classes, **place).train(self.training)
        self.fc = linear() if num_classes else nn.Identity()
        self.aux_head = linear() if num_classes and self.cls_token is not None else None

    def attended(self, x: Tensor) -> Tensor:
        """x: (B, C, H, W) -> the class token and all others, normed, (B, 1 + H W, C); (B, H W, C) without one."""
        return super().attended(x) if self.cls_token is not None else self.norm(x.flatten(2).transpose(1, 2))

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Tokens, the class token first, (B, N, C) -> scores (B, K), or what the classifier takes (B, C). Without
        pooling (B, N, K) and (B, N, C)."""
        pooled = x[:, 0] if self.pool_type == 'token' else x.mean(1) if self.pool_type else x
        pooled = self.drop(pooled)
        if pre_logits:
            return pooled
        scores = self.fc(pooled)
        if self.aux_head is not None and self.pool_type:
            scores = scores + 0.5 * self.aux_head(self.drop(x[:, 1:])).amax(1)
        return scores


class VOLOClassifier(TimmClassifier):
    """ELSA-VOLO or VOLO, with VOLO's own head, and the methods of timm's VOLO.

    ``forward_features`` returns tokens (B, 1 + h w, num_features): the class token after class attention and all
    others, normed. ``norm=True`` of ``forward_intermediates`` norms all maps but that of the first stage. A classifier
    of MMPretrain with ``VOLOHead``, or a released one, loads with its head.

    Args:
        backbone: ELSAVOLO.
        global_pool: 'token', 'avg' or '', see :class:`ClassAttentionHead`.
        arguments: further arguments of :class:`TimmClassifier`. ``attn_drop_rate`` is that of class attention, too.
    """

    output_fmt = 'NLC'
    classifier = 'head.fc', 'head.aux_head'

    def __init__(self, backbone: type[ELSAVOLO], global_pool: str = 'token', **arguments) -> None:
        super().__init__(backbone, global_pool=global_pool, **arguments)

    def _head(self, arguments: dict, **head_arguments) -> ClassAttentionHead:
        arch = self.backbone.resolve_arch(arguments[self.backbone.arch_argument])
        return ClassAttentionHead(
            self.num_features,
            self.num_classes,
            arch['num_heads'][1],
            arch['mlp_ratio'],
            arguments.get('attn_drop_rate', 0.0),
            **head_arguments,
        )

    def _features(self, x: Tensor) -> Tensor:
        return self.head.attended(x)

    def _intermediate(self, stage: int, x: Tensor, norm: bool) -> Tensor:
        return super()._intermediate(stage, self.head.norm(x) if norm and stage else x, False)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the stages after the last of ``indices``, class attention with the classifier, and the norm."""
        chosen = super().prune_intermediate_layers(indices, prune_norm, prune_head)
        if prune_norm or max(chosen) == 0:
            self.head.norm = nn.Identity()
        return chosen

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[int]]:
        """As that of :class:`TimmClassifier`. Blocks of class attention come after those of the backbone; the class
        token belongs to the stem, as in timm's VOLO."""
        depth_of = super().group_matcher(coarse)

        def depth(name: str) -> tuple[int]:
            if name == 'head.cls_token':
                return (0,)
            (found,) = depth_of(name)
            if coarse or not name.startswith('head'):
                return (found,)
            block = re.match(r'head\.post_network\.(\d+)', name)
            return (found + (int(block[1]) if block else len(self.head.post_network)),)

        return depth

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute blocks, those of class attention too, again in the backward pass."""
        super().set_grad_checkpointing(enable)
        self.head.with_cp = enable
