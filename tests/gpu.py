"""Where tests of GPUs run: on a GPU, or on the CPU in the dry run of tools/dev/gpu_check.py."""

import os

import pytest
import torch

DEVICE = os.environ.get('MMATTN_TEST_GPU', 'cuda')
needs_gpu = pytest.mark.skipif(DEVICE == 'cuda' and not torch.cuda.is_available(), reason='there is no GPU')
