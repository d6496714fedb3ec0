"""What a type checker sees of mmattn in a user's program. `make lint` checks it with mypy; it is never run.

Each `assert_type` is what a signature promises. Each `type: ignore` is a mistake that must be found: mypy reports those
that are not needed.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import mmattn
import mmattn.timm
from mmattn import backbones
from mmattn.analysis import count_operations, count_parameters
from mmattn.layers import build_token_mixer
from mmattn.ops import elsa_attention
from mmattn.weights import read_checkpoint

image = torch.zeros(1, 3, 64, 64)

backbone = backbones.ELSASwin(arch='tiny', kernel_size=7, out_indices=(1, 2), frozen_stages=1)
assert_type(backbone, backbones.ELSASwin)
assert_type(backbone.forward(image), tuple[Tensor, ...])
assert_type(backbone.channels, tuple[int, ...])
assert_type(backbone.get_layer_depth('patch_embed.proj.weight'), tuple[int, int])
backbones.ELSASwin(arch=1.5)  # type: ignore[arg-type]
backbones.ELSASwin(kernel_size='7')  # type: ignore[arg-type]
backbone.forward()  # type: ignore[call-arg]
backbone.forward('image.png')  # type: ignore[arg-type]

config = mmattn.start('photos', head='mask-rcnn', backbone='nat-tiny')
assert_type(config.filename, Any)
mmattn.start('photos', heads='mask-rcnn')  # type: ignore[call-arg]

classifier = mmattn.timm.TimmClassifier(backbones.ShuntedTransformer, num_classes=10, arch='tiny')
assert_type(classifier.forward(image), Tensor)
assert_type(classifier.forward_features(image), Tensor)
assert_type(mmattn.timm.TimmClassifier.from_pretrained(Path('folder')), mmattn.timm.TimmClassifier)
mmattn.timm.TimmClassifier('shunted')  # type: ignore[arg-type]
classifier.reset_classifier('10')  # type: ignore[arg-type]

assert_type(read_checkpoint('weights.pth')[0], dict[str, Tensor])
read_checkpoint(0)  # type: ignore[arg-type]

assert_type(elsa_attention(image, image, dilation=2), Tensor)
assert_type(build_token_mixer(dict(type='ELSA'), dim=96, num_heads=3), nn.Module)
assert_type(count_parameters(backbone), int)
assert_type(count_operations(lambda: backbone(image)), float)
with mmattn.mmseg_bases() as nothing:
    assert_type(nothing, None)
assert_type(mmattn.__version__, str)
