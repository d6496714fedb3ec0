"""GSA's axial attention for ONNX."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .batched import along_lines
from .table import fit_table, reach_of


def axial_attention_exported(query: Tensor, value: Tensor, table: Tensor, dim: int, beyond: str) -> Tensor:
    """The products of 'batched', with lines ordered by head: so runtimes copy whole vectors of a head, if at all."""
    length = query.shape[dim]
    index = torch.arange(length, device=table.device)
    positions = F.embedding(index - index[:, None] + length - 1, fit_table(table, length, beyond).to(query.dtype))
    order = (0, 3, 3 - dim, dim, 4)  # (B, heads, lines, A, channels)
    query, value = query.permute(order), value.to(query.dtype).permute(order)
    scores = query.movedim(3, 0).flatten(1, 3) @ positions.mT  # (A, B * heads * lines, A)
    out = along_lines(scores.transpose(0, 1), value.flatten(0, 2), reach_of(table, length, beyond))
    return out.unflatten(0, value.shape[:3]).permute([order.index(i) for i in range(5)])
