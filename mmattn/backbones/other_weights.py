"""Published weights that no backbone here reads, or that several take, for messages about weights that do not fit."""

LAYOUTS = {
    'a ConvNeXt': r'stages\.\d\.(blocks\.)?\d+\.(conv_dw|dwconv|depthwise_conv)\.|features\.\d\.\d+\.layer_scale$',
    'a Swin Transformer V2': r'attn\.(w_msa\.)?(cpb_mlp\.|logit_scale$)',
    'a ViT with LayerScale (DINOv2, DINOv3, DeiT III, BEiT)': r'blocks\.\d+\.(ls1\.gamma|gamma_1)$',
    'a ViT of torchvision, whose layout is not read here': r'encoder_layer_\d+\.self_attention\.',
    "a model of Hugging Face's transformers, whose layout is not read here": (
        r'layers?\.\d+\.(blocks\.\d+\.)?attention\.(attention|self|q_proj)\b'
    ),
}
