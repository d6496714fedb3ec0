"""Figures of the papers that our counts, rounded to the printed digits, do not have.

Reason -> names of models in the metafiles. A name alone stands for its operations, NAME:parameters for its size.
"""

OPEN = {
    # MSF
    'MSF prints 0.1 to 0.2 % more operations of transformers; it does not say what its tool counts beside products': """
        vit-ss_in1k vit-s_in1k msf-vit-s_in1k msf-vit-s-g2_in1k vit-b_in1k msf-vit-b_in1k msf-vit-b-g2_in1k
        swin-t_in1k msf-swin-t_in1k swin-s_in1k msf-swin-s_in1k
        vit-ss_300e_in1k vit-s_300e_in1k msf-vit-s_300e_in1k msf-vit-s-g2_300e_in1k vit-b_300e_in1k
        msf-vit-b_300e_in1k msf-vit-b-g2_300e_in1k swin-t_300e_in1k msf-swin-t_300e_in1k swin-s_300e_in1k
        msf-swin-s_300e_in1k
    """,
    'MSF prints 0.7 to 1 % more operations of ResNets; it does not say what its tool counts beside products': """
        resnet-50_in1k resnet-101_in1k resnext-50_in1k resnet-50_300e_in1k resnet-101_300e_in1k resnext-50_300e_in1k
    """,
    'MSF prints the operations of 64 groups of 4 channels, and the parameters of 32 groups of 8': """
        resnext-101_in1k resnext-101_300e_in1k
    """,
    # Shunted
    'Shunted seems to cut digits off instead of rounding': """
        shunted-t_in1k:parameters shunted-s_in1k
    """,
    'Shunted-L is not released, and its layout is inferred from its parameters': 'shunted-l_in1k',
    'Shunted prints 0.5 % more operations at 384 x 384': 'shunted-b_384_in1k',
    'how much of attention Shunted counts is inferred: the counts are 0.1 and 0.3 % lower': """
        shunted-s_upernet_8xb2-160k_ade20k-512x512 shunted-s_segformer_8xb2-160k_ade20k-512x512
    """,
    'PVTv2 prints 0.7 % more operations of B5': 'pvtv2-b5_in1k',
    # ELSA
    'ELSA took Swin-S from another paper, which prints 1.3 % fewer operations': """
        mask-rcnn_swin-s_fpn_ms-1x_coco mask-rcnn_swin-s_fpn_ms-3x_coco
    """,
    'ELSA prints up to 0.2 % more or fewer operations of detectors and segmentors': """
        cascade-mask-rcnn_elsa-swin-t_fpn_ms-1x_coco cascade-mask-rcnn_elsa-swin-s_fpn_ms-1x_coco
        cascade-mask-rcnn_swin-s_fpn_ms-1x_coco cascade-mask-rcnn_elsa-swin-t_fpn_ms-3x_coco
        cascade-mask-rcnn_elsa-swin-s_fpn_ms-3x_coco cascade-mask-rcnn_swin-s_fpn_ms-3x_coco
        cascade-mask-rcnn_swin-b_fpn_ms-3x_coco elsa-swin-t_upernet_8xb2-160k_ade20k-512x512
        swin-t_upernet_8xb2-160k_ade20k-512x512 elsa-swin-s_upernet_8xb2-160k_ade20k-512x512
        swin-s_upernet_8xb2-160k_ade20k-512x512 swin-b_upernet_8xb2-160k_ade20k-512x512
    """,
    "the settings of ELSA-VOLO are not printed, and VOLO's paper counts in a way that we do not know": """
        elsa-volo-d1_in1k elsa-volo-d1_384_in1k elsa-volo-d3_in1k elsa-volo-d3_448_in1k elsa-volo-d5_in1k
        elsa-volo-d5_512_in1k volo-d1_in1k volo-d1_384_in1k volo-d3_in1k volo-d3_448_in1k volo-d4_in1k
        volo-d4_448_in1k volo-d5_in1k volo-d5_512_in1k
    """,
    'the parameters of 224 x 224 are printed, without those of a larger table of positions': """
        elsa-volo-d3_448_in1k:parameters volo-d3_448_in1k:parameters volo-d5_512_in1k:parameters
        deit-b-384_in1k:parameters swin-b-384_in1k:parameters
    """,
    # GSA
    "the stem's channels of M-ResNet-50 are not printed": 'gsa-m-r50-all_in1k:parameters',
    # NAT
    'the authors of NAT and DiNAT print 0.1 to 0.4 % more operations': """
        dinat-l_in1k dinat-l_384_in1k dinat-l-11x11_384_in1k dinat_s-l_384_in1k mask-rcnn_dinat_s-s_fpn_ms-3x_coco
        cascade-mask-rcnn_nat-m_fpn_ms-3x_coco cascade-mask-rcnn_nat-t_fpn_ms-3x_coco
        cascade-mask-rcnn_nat-s_fpn_ms-3x_coco cascade-mask-rcnn_nat-b_fpn_ms-3x_coco
        cascade-mask-rcnn_dinat-m_fpn_ms-3x_coco cascade-mask-rcnn_dinat-t_fpn_ms-3x_coco
        cascade-mask-rcnn_dinat-s_fpn_ms-3x_coco cascade-mask-rcnn_dinat-b_fpn_ms-3x_coco
        cascade-mask-rcnn_dinat-l_fpn_ms-3x_coco cascade-mask-rcnn_dinat_s-t_fpn_ms-3x_coco
        cascade-mask-rcnn_dinat_s-s_fpn_ms-3x_coco cascade-mask-rcnn_dinat_s-b_fpn_ms-3x_coco
        cascade-mask-rcnn_dinat_s-l_fpn_ms-3x_coco nat-m_upernet_8xb2-160k_ade20k-512x512
        nat-t_upernet_8xb2-160k_ade20k-512x512 nat-s_upernet_8xb2-160k_ade20k-512x512
        nat-b_upernet_8xb2-160k_ade20k-512x512 dinat-m_upernet_8xb2-160k_ade20k-512x512
        dinat-t_upernet_8xb2-160k_ade20k-512x512 dinat-s_upernet_8xb2-160k_ade20k-512x512
        dinat-b_upernet_8xb2-160k_ade20k-512x512 dinat-l_upernet_8xb2-160k_ade20k-640x640
        dinat_s-t_upernet_8xb2-160k_ade20k-512x512 dinat_s-s_upernet_8xb2-160k_ade20k-512x512
        dinat_s-b_upernet_8xb2-160k_ade20k-512x512 dinat_s-l_upernet_8xb2-160k_ade20k-640x640
    """,
    'the authors of DiNAT print 200 M parameters of the large one': """
        dinat-l_in1k:parameters dinat-l_384_in1k:parameters dinat-l-11x11_384_in1k:parameters
    """,
    # TransNeXt
    'the author of TransNeXt prints 0.2 to 2 % more operations': """
        transnext-m_in1k transnext-b_in1k transnext-s_384_in1k transnext-b_384_in1k
    """,
    'the author of TransNeXt prints 0.2 to 0.4 % fewer parameters': """
        transnext-t_in1k:parameters dino-4scale_transnext-t_8xb1-12e_coco:parameters
        dino-5scale_transnext-t_8xb1-12e_coco:parameters dino-5scale_transnext-s_8xb1-12e_coco:parameters
    """,
    # baselines, printed by ELSA and Shunted
    'timm has another form of the network, or other operations than its paper': """
        t2t-vit-14_in1k coatnet-0_in1k coatnet-1_in1k coatnet-2_in1k coatnet-3_in1k coatnet-3_in1k:parameters
        efficientnet-b4_in1k
    """,
    'the table has the figures of 224 x 224, the model takes 240 x 240': 'crossvit-15_in1k crossvit-15_in1k:parameters',
    'up to 2 % more or fewer are printed, by papers that took the figures from others': """
        deit-b_in1k deit-b-384_in1k cait-m36-448_in1k cait-m48-448_in1k resnet-101_deit_in1k
        mit-b2_segformer_8xb2-160k_ade20k-512x512 r50-v1c_fpn_8xb2-80k_ade20k-512x512
        swin-t_fpn_8xb2-80k_ade20k-512x512 retinanet_r50_fpn_1x_coco:parameters retinanet_r50_fpn_ms-3x_coco:parameters
        twins-svt-s_fpn_8xb2-80k_ade20k-512x512:parameters twins-svt-s_upernet_8xb2-160k_ade20k-512x512:parameters
        twins-svt-s_fpn_8xb2-80k_ade20k-512x512 twins-svt-s_upernet_8xb2-160k_ade20k-512x512
    """,
}
