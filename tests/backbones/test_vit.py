"""ViTFrame beside timm's DeiT."""

import timm
import torch

from mmattn.backbones import ViTFrame


def small_deit(**settings):
    """A DeiT of timm, in which no tensor has its initial value."""
    vit = timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, **settings)
    for p in vit.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return vit.eval()


def started_from(vit, **settings):
    frame = ViTFrame(
        arch=dict(embed_dim=24, depth=2, num_heads=2), embedding='deit', img_size=32, patch_size=8, **settings
    )
    start = frame.from_release(vit.state_dict(), warm_start=True).tensors
    frame.load_state_dict({**frame.state_dict(), **start})
    return frame.eval()


def test_warm_start_computes_what_deit_computes():
    """Without a class token, the plain form is timm's network, position table and last norm included. A ghost head and
    windows as large as the map start as plain attention."""
    vit, x = small_deit(class_token=False, global_pool='avg', fc_norm=False), torch.randn(2, 3, 32, 32)
    expected = vit.forward_features(x).mT.unflatten(2, (4, 4))
    plain = started_from(vit, final_norm=True)
    torch.testing.assert_close(plain(x)[-1], expected, atol=1e-3, rtol=1e-4)  # eps 1e-5, not 1e-6
    for attention in (dict(type='GhostHeadAttention'), dict(type='WindowAttention', window_size=4, ghost_size=3)):
        other = started_from(vit, final_norm=True, attention=attention)
        torch.testing.assert_close(other(x)[-1], expected, atol=1e-3, rtol=1e-4)


def test_class_token_has_no_place():
    """Of a DeiT with a class token, the positions of the patches are taken; a mechanism without projections to query
    and key leaves out those of the DeiT."""
    vit = small_deit()
    frame = started_from(vit, attention=dict(type='DepthwiseConv'))
    positions = vit.pos_embed[0, 1:].T.unflatten(1, (4, 4))
    assert torch.equal(frame.patch_embed.pos_embed[0], positions)
    dropped = frame.from_release(vit.state_dict(), warm_start=True).dropped
    assert {'cls_token', 'blocks.0.attn.qkv.weight', 'head.weight', 'norm.weight'} <= set(dropped)
