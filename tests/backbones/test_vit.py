"""ViTFrame beside timm's DeiT."""

import pytest
import timm
import torch

from mmattn.backbones import ViTFrame
from mmattn.layers import build_token_mixer
from mmattn.weights import CheckpointError


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


@pytest.mark.parametrize('dtype, digits', [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(
    'attention, share',
    [
        (dict(type='GhostHeadAttention'), 0),
        (dict(type='SelfAttention', qkv_bias=True, ghost_size=3), 0),
        (dict(type='MeanShiftAttention', form='plain', proj_bias=True, ghost_size=3), 0),
        (dict(type='MeanShiftAttention', proj_bias=True), 1e-3),
    ],
)
def test_prefix_tokens_start_as_those_of_a_vit(tmp_path, log, attention, share, dtype, digits):
    """With class token and registers, token mixers start as timm's network, at another size of images too. Mean shift
    differs by the kernel. The log says it."""
    vit, x = small_deit(reg_tokens=2, dynamic_img_size=True, dynamic_img_pad=True).to(dtype), torch.rand(1, 3, 32, 32)
    torch.save(vit.state_dict(), tmp_path / 'vit.pth')
    frame = with_registers(attention=attention, final_norm=True, norm_eps=1e-6).to(dtype)
    frame.load_pretrained(tmp_path / 'vit.pth', warm_start=True)
    with torch.no_grad():
        # timm resizes the table of positions in float32
        for image, most in ((x, digits), (x[..., :27, :].repeat(1, 1, 2, 3), max(digits, 1e-6))):
            expected = vit.forward_features(image.to(dtype))[:, 3:].mT
            difference = (frame.eval()(image.to(dtype))[-1].flatten(2) - expected).norm() / expected.norm()
            assert difference < max(share, most)
    (line,) = (line for line in log if 'first pass' in line)
    assert 'differs from that of a ViT or DeiT by 0.' in line and ('0.0 %' in line or share)


def test_biases_that_a_token_mixer_does_not_have(tmp_path):
    """A trained ViT has biases of queries, keys and values. SelfAttention takes them with qkv_bias=True, and the
    sentence says so."""
    vit = small_deit(reg_tokens=2)
    torch.nn.init.normal_(vit.blocks[0].attn.qkv.bias)
    torch.save(vit.state_dict(), tmp_path / 'vit.pth')
    frame = with_registers(attention=dict(type='SelfAttention', ghost_size=3), final_norm=True)
    with pytest.raises(CheckpointError, match='qkv_bias=True to the backbone, and to a token mixer SelfAttention'):
        frame.load_pretrained(tmp_path / 'vit.pth', warm_start=True)
    frame = with_registers(attention=dict(type='SelfAttention', ghost_size=3, qkv_bias=True), final_norm=True)
    frame.load_pretrained(tmp_path / 'vit.pth', warm_start=True)
    assert torch.equal(frame.blocks[0].attn.qkv.bias, vit.blocks[0].attn.qkv.bias)


def test_starts_from_a_frame_of_plain_attention(tmp_path, log):
    """A ViTFrame that was trained here is a source as timm's ViT is, and is what the first pass is compared with."""
    torch.save(with_registers().state_dict(), tmp_path / 'vit.pth')
    with_registers(attention=dict(type='GhostHeadAttention')).load_pretrained(tmp_path / 'vit.pth', warm_start=True)
    (line,) = (line for line in log if 'first pass' in line)
    assert 'differs from that of a ViT or DeiT by 0.0 %' in line


GHOST = dict(type='SelfAttention', ghost_size=3)


@pytest.mark.parametrize(
    'trained, own, message',
    [
        (dict(), dict(), ''),
        (dict(feed_forward='conv'), dict(feed_forward='conv'), ''),
        (dict(num_heads=4, attention=GHOST), dict(), 'num_heads=4 instead of 2, which'),
        (dict(rope=10.0), dict(), 'attention.rope=10.0 instead of None, which'),
        (dict(), dict(rope=10.0), 'attention.rope=None instead of 10.0, which'),
        (dict(norm_eps=0.1), dict(attention=dict(type='GhostHeadAttention')), 'norm_eps=0.1 instead of 1e-05, which'),
    ],
)
def test_settings_of_the_source(tmp_path, log, trained, own, message):
    """A start from weights that were trained here with other settings, such as heads, is refused, though another class
    noted them. No percentage is logged for a source that is not the one in the file."""
    noted = dict(with_registers(**trained).settings_note, type='DINOViT')
    weights = dict(state_dict=with_registers(**trained).state_dict(), meta=dict(mmattn={'': noted}))
    torch.save(weights, tmp_path / 'vit.pth')
    frame = with_registers(**{'attention': GHOST, **own})
    if message:
        with pytest.raises(CheckpointError, match=f'the weights were trained with {message}.*give ViTFrame the sett'):
            frame.load_pretrained(tmp_path / 'vit.pth', warm_start=True)
        frame.load_pretrained(tmp_path / 'vit.pth', warm_start=True, strict=False)
    else:
        frame.load_pretrained(tmp_path / 'vit.pth', warm_start=True)
    assert any('differs from that of a ViT or DeiT by 0.0 %' in line for line in log) != bool(message)


def test_starts_without_the_tokens_of_its_source(tmp_path, log):
    """Of a ViTFrame, tokens and positions are left out where the frame has none. Tensors of odd shapes that no frame
    takes are not compared with, and do not stop the start."""
    weights = with_registers().state_dict()
    frame = with_registers(attention=dict(type='DepthwiseConv'), class_token=False, registers=0, embedding='patches')
    for odd in ({}, {'reg_token': torch.zeros(3)}, {'pos_embed': torch.zeros(())}):
        torch.save({**weights, **odd}, tmp_path / 'vit.pth')
        frame.load_pretrained(tmp_path / 'vit.pth', warm_start=True)
        said = [line for line in log if 'first pass' in line][-1]
        assert ('was not compared' if odd else 'differs from that of a ViT or DeiT by') in said
    assert frame.blocks[1].mlp.fc1.weight.equal(weights['blocks.1.mlp.fc1.weight'])
    left_out = next(line for line in log if 'left out' in line)
    assert all(name in left_out for name in ('prefix.cls_token', 'prefix.reg_token', 'patch_embed.pos_embed'))


def with_registers(depth=2, num_heads=2, **settings):
    arch = dict(embed_dim=24, depth=depth, num_heads=num_heads)
    tokens = dict(class_token=True, registers=2, embedding='deit', img_size=32, patch_size=8)
    return ViTFrame(arch, **{'attention': dict(type='SelfAttention'), **tokens, **settings})


def test_prefix_tokens_take_part():
    """Every prefix token changes the map, and gets gradients, the same ones with and without recomputation; stochastic
    depth leaves them together with their image."""
    x, gradients = torch.randn(2, 3, 32, 32), []
    for with_cp in (False, True):
        torch.manual_seed(1)
        frame = with_registers(with_cp=with_cp, drop_path_rate=0.5)
        frame(x)[-1].square().sum().backward()
        gradients.append([p.grad for p in frame.parameters()])
        assert frame.prefix.cls_token.grad.abs().min() > 0 and frame.prefix.reg_token.grad.abs().min() > 0
    torch.testing.assert_close(*gradients)
    block, pair = frame.blocks[-1], (torch.randn(8, 2, 2, 24), torch.randn(8, 3, 24))
    kept = [(out != given).flatten(1).any(1) for out, given in zip(block(*pair), pair)]
    assert torch.equal(*kept) and kept[0].any() and not kept[0].all()


def test_prefix_tokens_of_a_block_that_does_not_take_them():
    """Such a block mixes the map alone. Where no block takes them, they are refused."""
    frame = with_registers().eval()
    frame.blocks[1].attn = build_token_mixer(dict(type='DepthwiseConv', kernel_size=3), dim=24)
    x, prefix = torch.randn(1, 4, 4, 24), torch.randn(1, 3, 24)
    mixed, tokens = frame.blocks[1](x, prefix)
    assert torch.equal(mixed, frame.blocks[1](x))
    assert torch.equal(tokens, prefix + frame.blocks[1].mlp(frame.blocks[1].norm2(prefix)[None])[0])
    with pytest.raises(ValueError, match='class_token and registers need a block'):
        with_registers(attention=dict(type='DepthwiseConv'))


def test_final_norm_is_no_number():
    """Python takes 1 for True, but a config that says 1 means something else."""
    with pytest.raises(ValueError, match="final_norm must be True, False or 'all', not 1"):
        with_registers(final_norm=1)


def test_dropout_of_prefix_tokens():
    """drop_rate drops numbers of the class token and of registers, too, before the first block."""
    frame, seen = with_registers(drop_rate=0.5).train(), []
    frame.blocks[0].register_forward_pre_hook(lambda block, inputs: seen.append(inputs[1]))
    with torch.no_grad():
        for parameter in frame.prefix.parameters():
            parameter.fill_(1)
        frame(torch.randn(8, 3, 32, 32))
    assert set(seen[0].unique().tolist()) == {0, 2}


def test_a_frame_that_was_written_before(tmp_path):
    """Plain attention once had the names of mean-shift attention, and so had the notes of a ViTFrame's checkpoint."""
    arch = dict(embed_dim=24, depth=2, num_heads=2)
    frame = ViTFrame(arch).eval()
    names = {'.attn.qkv.': '.attn.pre_proj.', '.attn.proj.': '.attn.post_proj.'}
    weights = frame.state_dict()
    for new, old in names.items():
        weights = {name.replace(new, old): value for name, value in weights.items()}
    noted = dict(frame.settings_note, attention='MeanShiftAttention')
    noted |= {'attention.attention': 'plain', 'attention.sharing': 'QKVW'}
    torch.save(dict(state_dict=weights, meta=dict(mmattn={'': noted})), tmp_path / 'before.pth')
    again = ViTFrame(arch).eval()
    again.load_pretrained(tmp_path / 'before.pth')
    x = torch.randn(1, 3, 32, 48)
    assert torch.equal(again(x)[0], frame(x)[0])
    noted['attention.attention'] = 'gauss'
    torch.save(dict(state_dict=weights, meta=dict(mmattn={'': noted})), tmp_path / 'other.pth')
    with pytest.raises(CheckpointError, match="trained with attention='MeanShiftAttention'"):
        again.load_pretrained(tmp_path / 'other.pth')
