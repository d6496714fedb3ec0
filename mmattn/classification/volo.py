"""VOLO's classifier, and training it with token labels and MixToken.

"VOLO: Vision Outlooker for Visual Recognition", https://arxiv.org/abs/2106.13112
"All Tokens Matter: Token Labeling for Training Better Vision Transformers", https://arxiv.org/abs/2104.10858
"""

import functools
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from mmpretrain.models.classifiers import ImageClassifier
from mmpretrain.models.heads import LinearClsHead
from mmpretrain.models.utils.batch_augments import CutMix
from mmpretrain.structures import DataSample
from torch import Tensor, nn

from ..arguments import check_finite, check_flags, check_rates
from ..errors import InputError
from ..layers import ClassAttention
from ..ops.any_size import ceil_div
from .mixing import MixThenErase
from .token_labels import token_targets


@MODELS.register_module()
class VOLOHead(ClassAttention, LinearClsHead):
    """Class attention, a class head and a token head (VOLO, section 3.3, and its released code).

    After class attention to the last map, see :class:`mmattn.layers.ClassAttention`, ``fc`` classifies the class token
    and ``aux_head`` every other token. The scores of an image are those of ``fc`` plus half the largest of ``aux_head``
    per class.

    Args:
        num_classes: number of classes K.
        in_channels: channels C of the map.
        num_heads: heads of class attention; divides ``in_channels``.
        mlp_ratio: width of its MLPs, as a multiple of C.
        depth: class-attention blocks.
        init_cfg: by default that of the released code.
        kwargs: further arguments of ``LinearClsHead``.

    Raises:
        ValueError: if ``num_heads`` does not divide ``in_channels``, or a number is not positive and finite.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        num_heads: int,
        mlp_ratio: float = 3.0,
        depth: int = 2,
        init_cfg: dict | list[dict] | None = dict(type='TruncNormal', layer='Linear', std=0.02),
        **kwargs,
    ) -> None:
        super().__init__(num_classes, in_channels, init_cfg=init_cfg, **kwargs)
        self.add_class_attention(in_channels, num_heads, mlp_ratio, depth)
        self.aux_head = nn.Linear(in_channels, num_classes)

    def pre_logits(self, feats: tuple[Tensor, ...]) -> Tensor:
        """Maps, the last of them (B, C, H, W) -> class token and tokens, normed, (B, 1 + H W, C)."""
        return self.attended(feats[-1])

    def dense_logits(self, feats: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Maps, the last of them (B, C, H, W) -> logits of the class token (B, K) and of all others (B, K, H, W)."""
        x = self.pre_logits(feats)
        return self.fc(x[:, 0]), self.aux_head(x[:, 1:]).transpose(1, 2).unflatten(2, feats[-1].shape[2:])

    def forward(self, feats: tuple[Tensor, ...]) -> Tensor:
        """Maps, the last of them (B, C, H, W) -> scores before softmax (B, K)."""
        of_class, of_tokens = self.dense_logits(feats)
        return of_class + 0.5 * of_tokens.flatten(2).amax(2)


@MODELS.register_module()
class TokenLabelClassifier(ImageClassifier):
    """MMPretrain's ``ImageClassifier``, trained with a label for each token, and with MixToken.

    MixToken draws a box on the map of stride 16, with the area 1 - a for a uniform a, for each batch. The tokens in it
    are those of the reversed batch from the stem on; before the loss, token logits in the box are put back. The label
    of the class token is mixed by area. The loss is the cross entropy of the class token plus ``token_loss_weight``
    times the mean of that of all other tokens. The pipeline gives ``label_map`` and ``label_box``, see
    mmattn/classification/token_labels.py.

    Args:
        backbone: one whose ``forward`` takes a ``box``, such as ELSAVOLO.
        head: one with ``dense_logits``, such as VOLOHead.
        token_loss_weight: weight of the other tokens.
        label_smooth_val: label smoothing.
        ground_truth: let the class token also learn the true label t. With the label m of the map its target is
            w m + (1 - w) t: w is 0.5 where both have the same top class, otherwise 0.9. VOLO's script fine-tunes so.
        kwargs: further arguments of ``ImageClassifier``.

    Raises:
        ValueError: if ``label_smooth_val`` is not in [0, 1), ``token_loss_weight`` not finite or below 0,
            ``ground_truth`` not True or False, or if Mixup or CutMix would mix images, whose label maps stay as they
            are.
    """

    def __init__(
        self,
        backbone: dict,
        head: dict,
        token_loss_weight: float = 0.5,
        label_smooth_val: float = 0.1,
        ground_truth: bool = False,
        **kwargs,
    ) -> None:
        check_rates(label_smooth_val=label_smooth_val)
        check_finite('token_loss_weight', token_loss_weight, least=0)
        check_flags(ground_truth=ground_truth)
        super().__init__(backbone, head=head, **kwargs)
        mixing = getattr(self.data_preprocessor, 'batch_augments', None)
        for augment in mixing.augments if mixing else ():
            mixes = augment.mix if isinstance(augment, MixThenErase) else augment
            if mixes:
                raise ValueError(
                    f'{type(augment).__name__} of augments mixes images, but not their label maps: leave it out, '
                    'MixToken takes its place'
                )
        self.token_loss_weight = token_loss_weight
        self.label_smooth_val = label_smooth_val
        self.ground_truth = ground_truth

    def loss(self, inputs: Tensor, data_samples: list[DataSample]) -> dict[str, Tensor]:
        """Images (B, 3, H, W) and their samples, with ``label_map`` and ``label_box`` -> both losses.

        Raises:
            InputError: if a sample has no label map, or if a map has classes that the head does not have.
        """
        box, kept = random_box([ceil_div(side, 16) for side in inputs.shape[2:]])
        maps = self.backbone(inputs, box=box)
        of_class, of_tokens = self.head.dense_logits(self.neck(maps) if self.with_neck else maps)
        class_target, token_target = self.targets(data_samples, of_tokens)
        class_target = kept * class_target + (1 - kept) * class_target.flip(0)
        loss = functools.partial(F.cross_entropy, label_smoothing=self.label_smooth_val)
        return dict(
            loss_class=loss(of_class, class_target),
            loss_tokens=self.token_loss_weight * loss(swapped(of_tokens, box), token_target),
        )

    def targets(self, data_samples: list[DataSample], like: Tensor) -> tuple[Tensor, Tensor]:
        """Targets of the class token (B, K) and of the other tokens (B, K, H, W), the shape of ``like``.

        Raises:
            InputError: if the samples have no label maps, or some of other sizes or classes.
        """
        keys = ('label_map', 'label_box')
        if not all(key in sample for sample in data_samples for key in keys):
            raise InputError(
                'the data have no label maps: the training pipeline needs LoadTokenLabels, MoveTokenLabels, '
                "CropTokenLabels, and PackInputs with algorithm_keys=('label_map', 'label_box')"
            )
        paths = [sample.get('img_path') for sample in data_samples]
        shapes = [tuple(sample.label_map.shape) for sample in data_samples]
        for path, shape in zip(paths, shapes):
            if shape != shapes[0]:
                raise InputError(
                    f'the label map of {path} is {shape}, and that of {paths[0]} {shapes[0]}: all must have one size'
                )
        maps, boxes = (torch.stack([sample.get(key) for sample in data_samples]) for key in keys)
        classes, (largest, index) = like.shape[1], maps[:, 1].flatten(1).amax(1).max(0)
        if largest >= classes:
            raise InputError(
                f'the label map of {paths[index]} has class {int(largest)}, but the head has {classes}: make '
                'num_classes larger'
            )
        maps, boxes = maps.to(like.device), boxes.to(like.device)
        of_class, of_tokens = token_targets(maps, boxes, classes, like.shape[2:])
        if self.ground_truth:
            true = torch.cat([sample.gt_label for sample in data_samples]).to(like.device)
            weight = torch.where(of_class.argmax(1) == true, 0.5, 0.9)[:, None]
            of_class = weight * of_class + (1 - weight) * F.one_hot(true, classes)
        return of_class, of_tokens


def random_box(size: Sequence[int]) -> tuple[tuple[int, int, int, int], float]:
    """MixToken's box on a map of height and width ``size``: top, left, bottom, right, and the share of the map outside
    of it. It is CutMix's box."""
    (top, bottom, left, right), kept = CutMix(alpha=1.0).cutmix_bbox_and_lam(tuple(size), np.random.beta(1.0, 1.0))
    return tuple(map(int, (top, left, bottom, right))), float(kept)


def swapped(x: Tensor, box: Sequence[int]) -> Tensor:
    """Maps (B, C, H, W), in a box, top, left, bottom, right, those of the reversed batch."""
    top, left, bottom, right = box
    x, reversed_batch = x.clone(), x.flip(0)
    x[..., top:bottom, left:right] = reversed_batch[..., top:bottom, left:right]
    return x
