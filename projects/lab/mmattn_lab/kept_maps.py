"""A frozen backbone that computes each view of an image once."""

import hashlib
from pathlib import Path

import torch
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor

from mmguard.errors import refusing
from mmguard.outputs import whole_file


@MODELS.register_module()
class KeptMaps(BaseModule):
    """A frozen backbone whose maps are kept in files, so that only the first training computes them.

    An image is known by its pixels after normalisation, a backbone by its config and weights. Other pixels, settings or
    weights have other files. So this saves time only if the pipeline gives few views of an image: flips, but no random
    crops or colours. The maps are as large in float32 as the backbone gives them: 1.5 MB for 384 channels of an image
    of 504 x 378 and patches of 14 pixels.

    Args:
        backbone: config of the backbone.
        folder: where the maps are kept.
        bfloat16: whether the backbone computes under autocast to bfloat16. The maps are float32 in any case.
    """

    def __init__(self, backbone: dict, folder: str, bfloat16: bool = False) -> None:
        super().__init__()
        self.backbone = MODELS.build(backbone).requires_grad_(False)
        self.config = repr((sorted((k, repr(v)) for k, v in backbone.items() if k != 'init_cfg'), bfloat16))
        self.folder, self.bfloat16 = Path(folder), bfloat16
        self._known: tuple[int, str] = (-1, '')
        self.train()

    def train(self, mode: bool = True) -> 'KeptMaps':
        """Set the mode, but leave the backbone in that of evaluation."""
        super().train(mode)
        self.backbone.eval()
        return self

    @torch.no_grad()
    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Images (B, C, H, W) -> the backbone's maps.

        Raises:
            InputError: if a file of maps cannot be read or written.
        """
        if images.is_meta:
            return self.backbone(images)
        folder = self.folder / self.fingerprint()
        return tuple(torch.cat(maps) for maps in zip(*(self.maps(image, folder) for image in images.split(1))))

    def maps(self, image: Tensor, folder: Path) -> list[Tensor]:
        """The maps of an image (1, C, H, W)."""
        file = folder / f'{_digest([image])}.pt'
        if not file.is_file():
            with torch.autocast(image.device.type, torch.bfloat16, enabled=self.bfloat16):
                maps = self.backbone(image)
            folder.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as part:
                torch.save([one.float().cpu() for one in maps], part)
        with refusing(f'{file} cannot be read: remove it, and it is computed again'):
            return [one.to(image) for one in torch.load(file, weights_only=True)]

    def fingerprint(self) -> str:
        """A name for the backbone with its present weights, which are read again only after a change in place."""
        tensors = [*self.backbone.parameters(), *self.backbone.buffers()]
        version = sum(one._version for one in tensors)
        if version != self._known[0]:
            self._known = version, _digest(tensors, self.config)
        return self._known[1]


def _digest(tensors: list[Tensor], text: str = '') -> str:
    """A name for the shapes and values of tensors."""
    found = hashlib.sha256(text.encode())
    for one in tensors:
        found.update(f'{tuple(one.shape)} {one.dtype}'.encode())
        found.update(one.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()[:32]
