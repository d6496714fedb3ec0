import torch

#: whether torch.compile or torch.export is tracing; torch 2.1 and 2.2 have the function in another place
is_tracing = getattr(torch.compiler, 'is_compiling', None) or torch._utils.is_compiling
