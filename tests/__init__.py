import os
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent

if not torch.cuda.is_available():
    os.environ['TRITON_INTERPRET'] = '1'  # Triton reads it at its first import, which timm's layers cause
