"""Frames of plain attention beside timm's ViT, DeiT, DINOv2 and DINOv3."""

from functools import partial

import pytest
import timm
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from mmattn.backbones import DINOViT, ViTFrame
from mmattn.layers import SelfAttention
from mmattn.ops.resize import resampled
from mmattn.weights import CheckpointError, misfits

ARCH = dict(embed_dim=32, depth=2, num_heads=2)
BOTH = dict(out_indices=(0, 1))
ANY_SIZE = dict(ARCH, num_classes=0, dynamic_img_size=True, dynamic_img_pad=True)
FAST = 'vit_small_patch14_reg4_dinov2', 'vit_small_plus_patch16_dinov3'
LEARNED = dict(embedding='deit', img_size=32, patch_size=8, class_token=True, norm_eps=1e-6)


def dino(version, registers, swiglu=0, **settings):
    arch = dict(ARCH, version=version, registers=registers, swiglu=swiglu)
    return DINOViT(arch, img_size=4 * (14 if version == 2 else 16), **{**BOTH, **settings})


def dinov2_of_timm(registers):
    tokens = dict(reg_tokens=registers, no_embed_class=registers > 0)
    return rough(VisionTransformer(**ANY_SIZE, img_size=56, patch_size=14, init_values=1e-5, **tokens))


def dinov3_of_timm(swiglu=0, qkv_bias=False):
    """With the arguments of timm's ``vit_small_patch16_dinov3`` and ``vit_small_plus_patch16_dinov3``."""
    rope = dict(use_rot_pos_emb=True, rope_type='dinov3', rope_temperature=100, rope_rotate_half=True)
    mlp = dict(swiglu_mlp=True, swiglu_align_to=8) if swiglu else {}
    others = dict(num_reg_tokens=4, use_abs_pos_emb=False, use_fc_norm=False, init_values=1e-5, qkv_bias=qkv_bias)
    return rough(Eva(**ANY_SIZE, **rope, **mlp, **others, img_size=64, norm_layer=partial(nn.LayerNorm, eps=1e-5)))


def rough(model):
    """No tensor has its initial value."""
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model.eval()


def deit_of_timm(cls=VisionTransformer, **settings):
    return rough(cls(**{**ANY_SIZE, 'img_size': 32, 'patch_size': 8, **settings}))


def compare(frame, vit, sizes, norm, **settings):
    """The weights fill the frame strictly, and its maps are timm's. timm interpolates tables in float32."""
    for dtype, exact in ((torch.float32, 1e-6), (torch.float64, 1e-10)):
        vit, frame = vit.to(dtype), frame.to(dtype).eval()
        frame.load_state_dict(vit.state_dict())
        for size in sizes:
            x = torch.randn(2, 3, *size, dtype=dtype)
            wanted = vit.forward_intermediates(x, norm=norm, intermediates_only=True)
            same_size = getattr(vit, 'pos_embed', None) is None or size == sizes[0]
            for out, expected in zip(frame(x), wanted, strict=True):
                assert (out - expected).norm() < (exact if same_size else max(exact, 1e-7)) * expected.norm()


@pytest.mark.parametrize('registers', [0, 4])
@torch.no_grad()
def test_dinov2(registers):
    compare(dino(2, registers), dinov2_of_timm(registers), [(56, 56), (112, 70), (61, 31)], norm=True)


@pytest.mark.parametrize('swiglu, qkv_bias', [(0, False), (1, True)])
@torch.no_grad()
def test_dinov3(swiglu, qkv_bias):
    frame = dino(3, 4, swiglu, qkv_bias=qkv_bias)
    compare(frame, dinov3_of_timm(swiglu, qkv_bias), [(64, 64), (112, 80), (61, 101)], norm=True)


@torch.no_grad()
def test_deit():
    """With a class token; with a token of distillation, which is a register; and DeiT III, which has LayerScale and
    no position of the class token."""
    frame = partial(ViTFrame, ARCH, None, **LEARNED, **BOTH)
    compare(frame(), deit_of_timm(), [(32, 32), (40, 57)], norm=False)
    distilled = deit_of_timm(VisionTransformerDistilled, num_classes=3)
    compare(frame(registers=1), distilled, [(32, 32)], norm=False)
    third = deit_of_timm(no_embed_class=True, init_values=1e-6)
    compare(frame(layer_scale=1e-6, final_norm='all'), third, [(32, 32)], norm=True)


@pytest.mark.parametrize(
    'arch', [arch if arch in FAST else pytest.param(arch, marks=pytest.mark.slow) for arch in DINOViT.arch_zoo]
)
def test_every_size_has_the_tensors_of_timm(arch):
    """The names are timm's; names and shapes of weights fill each size."""
    with torch.device('meta'):
        backbone, vit = DINOViT(arch), timm.create_model(arch, num_classes=0)
    translation = backbone.from_release(vit.state_dict())
    shapes = {name: value.shape for name, value in translation.tensors.items()}
    assert shapes == {name: value.shape for name, value in backbone.state_dict().items()} and not translation.dropped
    assert {norm.eps for norm in backbone.modules() if isinstance(norm, nn.LayerNorm)} == {vit.norm.eps}


def test_names_of_meta():
    """Meta's files of DINOv2 and DINOv3 fill the same tensors. Their position table has one of the class token; keys
    have no bias."""
    own = dino(2, 4).state_dict()
    released = dinov2_of_timm(4).state_dict()
    released['register_tokens'] = released.pop('reg_token')
    first = torch.randn(1, 1, 32)
    released |= dict(pos_embed=torch.cat((first, released['pos_embed']), 1), mask_token=torch.zeros(1, 32))
    translated = dino(2, 4).from_release(released)
    assert set(translated.tensors) == set(own) and translated.dropped == ['mask_token']
    assert torch.equal(translated.tensors['prefix.cls_token'], released['cls_token'] + first)

    released = {}
    for name, value in dinov3_of_timm(swiglu=1).state_dict().items():
        for ours, theirs in (
            ('gamma_', 'ls'), ('fc1_g', 'w1'), ('fc1_x', 'w2'), ('fc2', 'w3'), ('reg_token', 'storage_tokens')
        ):  # fmt: skip
            name = name.replace(ours, theirs)
        released[name + '.gamma' if name[-3:-1] == 'ls' else name] = value
    biases = {f'blocks.{i}.attn.qkv.bias': torch.randn(96) for i in range(2)}
    masks = {f'{name}_mask': torch.full((96,), float('nan')) for name in biases}
    released |= {**biases, **masks, 'rope_embed.periods': torch.ones(4), 'mask_token': torch.zeros(1, 32)}
    frame = dino(3, 4, swiglu=1, qkv_bias=True)
    frame.load_state_dict(released)
    assert frame.blocks[0].attn.qkv.bias.unflatten(0, (3, -1)).any(1).tolist() == [True, False, True]
    with pytest.raises(CheckpointError, match='give qkv_bias=True to the backbone'):
        dino(3, 4, swiglu=1).load_state_dict(released)
    dino(3, 4, swiglu=1).load_state_dict({**released, **{name: torch.zeros(96) for name in biases}})
    odd = {'blocks.0.attn.qkv.bias': torch.tensor(0.0), 'blocks.1.attn.q_bias': torch.tensor(0.0)}
    with pytest.raises(CheckpointError, match='1 of another shape: blocks.0.attn.qkv.bias'):
        frame.load_state_dict({**released, **odd, 'blocks.1.attn.v_bias': torch.zeros(3)})


def test_other_tokens_are_refused():
    """Weights with a class token or registers do not fill a frame without them, nor the other way round."""
    with pytest.raises(CheckpointError, match='weights have cls_token.*give the backbone class_token'):
        ViTFrame(ARCH, None, **{**LEARNED, 'class_token': False}).load_state_dict(deit_of_timm().state_dict())
    with pytest.raises(CheckpointError, match='weights have reg_token'):
        dino(3, 0).load_state_dict(dinov3_of_timm().state_dict())
    frame = dino(2, 4)
    found = misfits(frame.from_release(dinov2_of_timm(0).state_dict()), frame.state_dict())
    assert found == {'missing': ['prefix.reg_token']}


@torch.no_grad()
def test_token_mixers_of_single_blocks():
    """The first block is plain and takes its weights; the second starts as its token mixer can, and gives the prefix no
    update. Strict loading refuses it."""
    vit = dinov2_of_timm(4)
    frame = dino(2, 4, attention=[None, dict(type='GhostHeadAttention', gamma=0)]).eval()
    assert [type(block.attn).__name__ for block in frame.blocks] == ['SelfAttention', 'GhostHeadAttention']
    assert (frame.settings['attention[0]'], frame.settings['attention[1].gamma']) == ('SelfAttention', 0.0)
    assert misfits(frame.from_release(vit.state_dict()), frame.state_dict())
    frame.load_state_dict(frame._warm_started(vit.state_dict()))
    x = torch.randn(1, 3, 56, 56)
    wanted = vit.forward_intermediates(x, norm=True, intermediates_only=True)
    torch.testing.assert_close(frame(x)[0], wanted[0], atol=1e-5, rtol=1e-5)
    assert torch.equal(frame.blocks[1].attn.pre_proj.weight[:64], vit.blocks[1].attn.qkv.weight[:64])
    with pytest.raises(ValueError, match='dilation must be one number'):
        dino(2, 4, attention=dict(type='NeighbourhoodAttention', dilation=(1, 2)))


@pytest.mark.parametrize(
    'wrong, message', [(dict(version=4), 'version must be 2 or 3'), (dict(swiglu=7), 'swiglu must be 0 or 1')]
)
def test_unknown_forms(wrong, message):
    with pytest.raises(ValueError, match=f'^arch: {message}, not'):
        DINOViT(dict(ARCH, **dict(dict(version=3, registers=4, swiglu=0), **wrong)))


def test_warm_start_from_a_file(tmp_path, log):
    """The source that it is compared with in the log has the architecture of a plain ViT."""
    torch.save(dinov3_of_timm().state_dict(), tmp_path / 'dinov3.pth')
    dino(3, 4, attention=dict(type='GhostHeadAttention', gamma=0)).load_pretrained(
        tmp_path / 'dinov3.pth', warm_start=True
    )
    assert any('DINOViT, warm start: the first pass differs from' in line for line in log)


@torch.no_grad()
def test_token_mixers_on_rotary_positions():
    """Token mixers have the positions of DINOv3: a ghost head and the plain form of mean-shift attention start as
    timm's model; with the probe at zero, the Gaussian kernel differs by little. Without positions they would differ by
    more.
    """
    vit, x = dinov3_of_timm(), torch.randn(1, 3, 64, 96)
    (_, expected) = vit.forward_intermediates(x, norm=True, intermediates_only=True)
    mean_shift = dict(type='MeanShiftAttention', proj_bias=True)
    for attention, most in (
        (dict(type='GhostHeadAttention'), 1e-6),
        (dict(mean_shift, form='plain'), 1e-6),
        (mean_shift, 1e-3),
    ):
        frame = dino(3, 4, attention=attention).eval()
        frame.load_state_dict(frame._warm_started(vit.state_dict()))
        assert (frame(x)[1] - expected).norm() < most * expected.norm()


@torch.no_grad()
def test_tables_are_resampled_as_in_timm():
    """Longer and shorter, and the same; under autocast, and as half precision."""
    table = torch.randn(1, 5, 7, 7)
    for size in ((7, 7), (3, 16), (20, 5)):
        tokens = timm.layers.resample_abs_pos_embed(table.flatten(2).mT, list(size), [7, 7], num_prefix_tokens=0)
        expected = tokens.mT.unflatten(2, size)
        torch.testing.assert_close(resampled(table, *size), expected, atol=1e-6, rtol=1e-5)
        with torch.autocast('cpu', torch.bfloat16):
            torch.testing.assert_close(resampled(table, *size), expected, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(resampled(table.bfloat16(), *size), expected.bfloat16(), atol=0.05, rtol=0.02)


def test_rotary_heads_are_checked():
    """An angle is of two channels, and there are as many of rows as of columns."""
    with pytest.raises(ValueError, match='rope needs heads of a multiple of 4 channels, not 6'):
        SelfAttention(12, 2, rope=100.0)
    with pytest.raises(ValueError, match='rope must be a finite number of at least 1, not 0.5'):
        SelfAttention(16, 2, rope=0.5)
