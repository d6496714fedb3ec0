from mmpretrain.models.utils.batch_augments import RandomBatchAugment
from mmpretrain.registry import BATCH_AUGMENTS
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from ..arguments import check_finite


@BATCH_AUGMENTS.register_module()
class MixThenErase:
    """Mix images, then erase a rectangle in some of them: the order of timm's loader, which ELSA's script uses.

    MMPretrain's ``RandomErasing`` is a step of the pipeline, and so erases before images are mixed.

    Args:
        mixing: configs of batch augmentations; one of them is drawn for each batch, evenly. [] mixes nothing.
        erase_prob: probability that an image loses a rectangle. Its pixels become normal noise of deviation 1 in
            normalised units; its area is 0.02 to 1/3 of the image's.

    Raises:
        ValueError: if ``erase_prob`` is not in [0, 1].
    """

    def __init__(self, mixing: list[dict], erase_prob: float) -> None:
        check_finite('erase_prob', erase_prob, least=0, most=1)
        self.mix = RandomBatchAugment(mixing) if mixing else None
        self.erase_prob = erase_prob

    def __call__(self, images: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised images (B, 3, H, W) and one-hot labels (B, classes) -> both, mixed; images are erased in place."""
        if self.mix:
            images, scores = self.mix(images, scores)
        return RandomErasing(self.erase_prob, mode='pixel', device=images.device)(images), scores
