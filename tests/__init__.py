import os
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = sorted(path.parent for path in ROOT.glob('projects/*/pyproject.toml'))  #: folders of their packages
PYTHONPATH = os.pathsep.join(map(str, (ROOT, *PROJECTS)))  #: of processes that tests start

torch.backends.cudnn.allow_tf32 = False  # On a GPU, it has 10 bits of mantissa. Tests compare with 1e-5.

if not torch.cuda.is_available():
    os.environ['TRITON_INTERPRET'] = '1'  # Triton reads it at its first import, which timm's layers cause
