"""The loss between the features of a student and of its teacher."""

import math
from numbers import Real

import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmattn.errors import InputError


@MODELS.register_module()
class FeatureLoss(nn.Module):
    r"""Cosine and smooth L1 distance of features, as in UNIC (https://arxiv.org/abs/2408.05088) and its released code.

    .. math::
        w_{cos} (1 - \cos(p, t)) + w_{L1} \, \mathrm{smoothL1}_\beta(p - t)

    The cosine is that of all channels of a position, smooth L1 the mean over them. All positions count the same.

    Args:
        cosine_weight: :math:`w_{cos}`.
        smooth_l1_weight: :math:`w_{L1}`.
        beta: difference at which smooth L1 changes from a square to a line.

    Raises:
        InputError: if an argument is negative or not finite, or both weights are 0.
    """

    def __init__(self, cosine_weight: float = 0.5, smooth_l1_weight: float = 0.5, beta: float = 1.0) -> None:
        super().__init__()
        for name, value in (('cosine_weight', cosine_weight), ('smooth_l1_weight', smooth_l1_weight), ('beta', beta)):
            if not isinstance(value, Real) or not 0 <= value < math.inf:
                raise InputError(f'{name} of FeatureLoss must be a finite number of at least 0, not {value!r}')
        if not cosine_weight and not smooth_l1_weight:
            raise InputError('cosine_weight and smooth_l1_weight of FeatureLoss are both 0: nothing would be learned')
        self.cosine_weight, self.smooth_l1_weight, self.beta = cosine_weight, smooth_l1_weight, beta

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Features (B, C, ...) of both -> the loss of each image, (B,)."""
        cosine = 1 - F.cosine_similarity(prediction, target, dim=1)
        distance = F.smooth_l1_loss(prediction, target, reduction='none', beta=self.beta).mean(1)
        loss = self.cosine_weight * cosine + self.smooth_l1_weight * distance
        return loss.reshape(len(loss), -1).mean(1)
