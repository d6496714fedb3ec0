import torch
from torch import Tensor, nn

from ..arguments import check_heads, check_rates, check_whole, hidden_channels
from ..ops.recompute import recompute


class ClassAttention:
    """A class token that attends to the tokens of a map (VOLO, section 3.3, and its released code).

    Only the class token is updated. At the end, all tokens are normed. A head inherits from this class and from a torch
    module, and calls :meth:`add_class_attention` when it is built.

    Attributes:
        with_cp: compute blocks again in the backward pass instead of keeping their activations in memory.
    """

    with_cp = False

    def add_class_attention(
        self, in_channels: int, num_heads: int, mlp_ratio: float = 3.0, depth: int = 2, attn_drop_rate: float = 0.0
    ) -> None:
        """Add ``cls_token``, ``post_network`` and ``norm``, the names of VOLO's release.

        Args:
            in_channels: channels C of the map.
            num_heads: heads of class attention; divides ``in_channels``.
            mlp_ratio: width of the MLPs, as a multiple of C.
            depth: number of blocks.
            attn_drop_rate: dropout of attention weights.

        Raises:
            ValueError: if an argument is wrong; the message names it.
        """
        from timm.models.volo import ClassBlock  # timm takes seconds

        check_whole('in_channels', in_channels)
        check_heads(in_channels, num_heads)
        check_whole('depth', depth)
        check_rates(attn_drop_rate=attn_drop_rate)
        hidden_channels(in_channels, mlp_ratio)
        self.cls_token = nn.Parameter(nn.init.trunc_normal_(torch.zeros(1, 1, in_channels), std=0.02))
        self.post_network = nn.ModuleList(
            ClassBlock(in_channels, num_heads, mlp_ratio=mlp_ratio, attn_drop=attn_drop_rate) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(in_channels)

    def attended(self, x: Tensor) -> Tensor:
        """x: (B, C, H, W) -> the class token and all others, normed, (B, 1 + H W, C)."""
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), 1)
        for block in self.post_network:
            x = recompute(block, x) if self.with_cp and self.training else block(x)
        return self.norm(x)
