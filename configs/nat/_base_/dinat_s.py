# The stages of DiNAT. The second stage of DiNAT_s has two blocks. The second of them has DiNAT's largest dilation of
# that stage.
_base_ = './dinat.py'
attentions = {
    data: [
        dict(type='NeighbourhoodAttention', dilation=each)
        for each in (_base_.dilations[data][0], dilation, *_base_.dilations[data][2:])
    ]
    for data, dilation in dict(in1k=(1, 4), in1k_384=(1, 6), coco=(1, 14), ade20k=(1, 8), ade20k_640=(1, 10)).items()
}
