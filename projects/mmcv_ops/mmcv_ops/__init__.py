"""The functions of MMCV's compiled extension, ``mmcv._ext``, without a compiler.

Names, arguments and results are those of the extension, which ``mmcv.ops`` calls: most functions get the tensors of
their results and fill them. They run inside of MMCV's autograd functions, so they keep no graph.
"""

from collections.abc import Callable
from typing import NoReturn

import torch

from .attention import ms_deform_attn_backward, ms_deform_attn_forward
from .boxes import bbox_overlaps, line_nms_forward, nms, nms_match, softnms
from .deform import (
    deform_conv_backward_input,
    deform_conv_backward_parameters,
    deform_conv_forward,
    modulated_deform_conv_backward,
    modulated_deform_conv_forward,
)
from .losses import (
    sigmoid_focal_loss_backward,
    sigmoid_focal_loss_forward,
    softmax_focal_loss_backward,
    softmax_focal_loss_forward,
)
from .roi import roi_align_backward, roi_align_forward, roi_pool_backward, roi_pool_forward
from .windows import (
    carafe_backward,
    carafe_forward,
    carafe_naive_backward,
    carafe_naive_forward,
    masked_col2im_forward,
    masked_im2col_forward,
    psamask_backward,
    psamask_forward,
)

__all__ = [
    'bbox_overlaps',
    'carafe_backward',
    'carafe_forward',
    'carafe_naive_backward',
    'carafe_naive_forward',
    'deform_conv_backward_input',
    'deform_conv_backward_parameters',
    'deform_conv_forward',
    'get_compiler_version',
    'get_compiling_cuda_version',
    'line_nms_forward',
    'masked_col2im_forward',
    'masked_im2col_forward',
    'modulated_deform_conv_backward',
    'modulated_deform_conv_forward',
    'ms_deform_attn_backward',
    'ms_deform_attn_forward',
    'nms',
    'nms_match',
    'psamask_backward',
    'psamask_forward',
    'roi_align_backward',
    'roi_align_forward',
    'roi_pool_backward',
    'roi_pool_forward',
    'sigmoid_focal_loss_backward',
    'sigmoid_focal_loss_forward',
    'softmax_focal_loss_backward',
    'softmax_focal_loss_forward',
    'softnms',
]


# torch.compile leaves them out of its graphs, as it does with the compiled ones. If it traces MMCV's autograd functions
# with them inside, it loses what is written to tensors: the gradients of RoIAlign become 0 in torch 2.11.
for _name in __all__:
    if _name in globals():
        globals()[_name] = torch.compiler.disable(globals()[_name])


def get_compiler_version() -> str:
    return 'none: operators of mmattn_mmcv_ops'


def get_compiling_cuda_version() -> str:
    return 'not available'


def no_stand_in(name: str) -> Callable:
    """Return what ``mmcv._ext`` has in place of an operator that is missing here.

    ``mmcv.ops`` asks for all operators when it is imported. This one says at its first call that it is missing.
    """

    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f'mmattn_mmcv_ops has no {name} for mmcv.ops: install an MMCV that was compiled for your torch and Python, '
            'either a wheel (mim install onedl-mmcv, or mim install mmcv), or from source (MMCV_WITH_OPS=1 pip install '
            '--no-build-isolation onedl-mmcv, or mmcv, with a C++ compiler and for a GPU with nvcc)'
        )

    return refuse
