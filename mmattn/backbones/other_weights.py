"""What all backbones know of weights: published ones that none of them reads, or several; and notes written before."""

import re

LAYOUTS = {
    'a ConvNeXt': r'stages\.\d\.(blocks\.)?\d+\.(conv_dw|dwconv|depthwise_conv)\.|features\.\d\.\d+\.layer_scale$',
    'a Swin Transformer V2': r'attn\.(w_msa\.)?(cpb_mlp\.|logit_scale$)',
    'a ViT with LayerScale (DINOv2, DINOv3, DeiT III, BEiT)': r'blocks\.\d+\.(ls1\.gamma|gamma_1)$',
    'a ViT of torchvision, whose layout is not read here': r'encoder_layer_\d+\.self_attention\.',
    "a model of Hugging Face's transformers, whose layout is not read here": (
        r'layers?\.\d+\.(blocks\.\d+\.)?attention\.(attention|self|q_proj)\b'
    ),
}


def read_settings(note: dict[str, object]) -> dict[str, object]:
    """The settings of a backbone under the names of today. Mean-shift attention of the form 'plain' that shares no
    matrix becomes what it computes."""
    read: dict[str, object] = {}
    for name, value in note.items():
        if isinstance(name, str):
            name = re.sub(r'^stages(?=\[)', 'attention', name)
            if isinstance(value, str) and value in ('msf', 'residual', 'gauss', 'plain'):
                name = re.sub(r'\battention$', 'form', name)
        read[name] = value
    for place in [name for name, value in read.items() if isinstance(value, str) and value == 'MeanShiftAttention']:
        plain = {f'{place}.form': 'plain', f'{place}.sharing': 'QKVW'}
        if all(str(read.get(name)) == wanted for name, wanted in plain.items()):
            read = {**{name: value for name, value in read.items() if name not in plain}, place: 'SelfAttention'}
    return read
