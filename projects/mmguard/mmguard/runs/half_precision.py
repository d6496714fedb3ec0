"""Training in bfloat16 on a CPU, where MMEngine's AmpOptimWrapper needs an accelerator."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn


@OPTIM_WRAPPERS.register_module()
class BFloat16OptimWrapper(OptimWrapper):
    """Forward passes of a training compute in bfloat16 what torch's autocast does, on any device.

    Weights, gradients and the optimizer stay float32. The range of bfloat16 is that of float32, so losses are not
    scaled. A CPU is faster if it has instructions for bfloat16 (AVX512_BF16, AMX), and slower otherwise.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        device = next(model.parameters()).device.type
        with super().optim_context(model), torch.autocast(device, torch.bfloat16):
            yield
