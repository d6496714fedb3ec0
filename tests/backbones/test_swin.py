"""SwinFrame with the weights of Swin Transformers, as their authors, timm, torchvision and OpenMMLab publish them."""

import re

import mmdet.models
import mmpretrain.models
import mmseg.models
import pytest
import timm
import torch
import torchvision

from mmattn.backbones import ELSASwin, MSFSwin, SwinFrame, swin_weights
from mmattn.weights import CheckpointError
from tests.backbones.test_msf_swin import microsoft

ARCH = dict(embed_dim=8, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8))
MM = dict(embed_dims=8, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8), window_size=7)


def randomised(model):
    """All parameters differ from their initial values, and from each other."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3, generator=generator)
    model.eval()
    return model


def swin_of_timm(size, window=7):
    return timm.models.SwinTransformer(img_size=size, window_size=window, **ARCH, num_classes=3)


def swin_of_torchvision():
    return torchvision.models.SwinTransformer(
        [4, 4], 8, list(ARCH['depths']), list(ARCH['num_heads']), [7, 7], num_classes=3
    )


def last_map(model, x):
    """The map of a classifier before its pooling, (B, H, W, C)."""
    return model.norm(model.features(x)) if hasattr(model, 'features') else model.forward_features(x)


@pytest.mark.parametrize(
    'build, size, window',
    [
        (lambda: swin_of_timm(224), (224, 224), 7),
        (lambda: swin_of_timm(384, 12), (384, 384), 12),
        (swin_of_torchvision, (224, 224), 7),
        (swin_of_torchvision, (100, 244), 7),
    ],
)
def test_classifiers(build, size, window):
    """The last map is that of timm's and torchvision's classifiers, whose windows are not shifted on small maps."""
    swin = randomised(build()).double()
    frame = SwinFrame(ARCH, window_size=window, shift_small_maps=False, out_indices=(3,)).eval().double()
    layouts = [swin.state_dict()]
    if window == 7 and hasattr(swin, 'layers'):
        layouts.append(microsoft(swin.state_dict()))
    x = torch.rand(1, 3, *size, dtype=torch.float64)
    with torch.no_grad():
        expected = last_map(swin, x)
        for weights in layouts:
            frame.load_state_dict(weights)
            torch.testing.assert_close(frame(x)[0].permute(0, 2, 3, 1), expected)


@pytest.mark.parametrize('package', [mmdet.models, mmseg.models])
@pytest.mark.parametrize('size', [(224, 224), (75, 133)])
def test_backbones_of_openmmlab(package, size):
    """All maps are those of MMDetection's and MMSegmentation's backbones."""
    swin = randomised(package.SwinTransformer(**MM))
    frames = [SwinFrame(ARCH).eval(), MSFSwin(ARCH, form='plain', proj_bias=True).eval()]
    x = torch.rand(1, 3, *size)
    with torch.no_grad():
        expected = swin(x)
        for frame in frames:
            frame.load_state_dict(swin.state_dict())
            for a, b in zip(frame(x), expected, strict=True):
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_a_classifier_of_mmpretrain():
    arch = dict(embed_dims=8, depths=ARCH['depths'], num_heads=ARCH['num_heads'])
    swin = randomised(mmpretrain.models.SwinTransformer(arch, img_size=224))
    frame = SwinFrame(ARCH, shift_small_maps=False, out_indices=(3,)).eval()
    frame.load_state_dict(swin.state_dict())
    x = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(frame(x)[0], swin(x)[0], atol=1e-4, rtol=1e-4)


NET7 = dict(type='LocalAttention', terms=['qk', 'qr', 'rk', 'b'])


@pytest.mark.parametrize(
    'token_mixer',
    [
        NET7,
        dict(NET7, shared_tables=True, ghost_size=3),
        dict(type='LocalAttention', terms=['b', 'qk', 'rk']),
        dict(type='WindowAttention', ghost_size=5),
        dict(type='MeanShiftWindow', form='plain', proj_bias=True, ghost_size=3),
    ],
)
def test_additions_start_at_zero(token_mixer):
    """What a token mixer adds to Swin's attention leaves its maps as they are. Only a warm start takes the weights."""
    swin = randomised(mmdet.models.SwinTransformer(**MM)).double()
    frame = SwinFrame(ARCH, token_mixer).eval().double()
    with pytest.raises(CheckpointError, match='look like a Swin Transformer; warm_start=True'):
        frame.load_state_dict(swin.state_dict())
    frame.load_state_dict(frame._warm_started(swin.state_dict()))
    x = torch.rand(1, 3, 75, 133, dtype=torch.float64)
    with torch.no_grad():
        for a, b in zip(frame(x), swin(x), strict=True):
            assert (a - b).norm() < 1e-10 * b.norm()


def test_tables_of_neighbours():
    """Of Swin's table, neighbours take the offsets that they have; beyond it, theirs is zero."""
    swin = randomised(mmdet.models.SwinTransformer(**MM)).state_dict()
    for side, first in ((5, 4), (15, -1)):
        frame = SwinFrame(ARCH, dict(NET7, area='neighbours', kernel_size=side))
        table = frame._warm_started(swin)['layers.1.blocks.0.attn.rb'].view(2, side, side)
        given = swin['stages.1.blocks.0.attn.w_msa.relative_position_bias_table'].flip(0).T.view(2, 13, 13)
        expected = torch.nn.functional.pad(given, (1, 1, 1, 1))[:, first + 1 :, first + 1 :][:, :side, :side]
        assert torch.equal(table, expected)


def test_token_mixers_take_what_they_can(log):
    """ELSA takes the value and the output, the last stage, whose windows are Swin's, all. The log names the rest."""
    swin = randomised(swin_of_timm(64))
    weights = swin.state_dict()
    backbone = ELSASwin(dict(ARCH, group_width=1))
    with pytest.raises(CheckpointError, match='look like a Swin Transformer; warm_start=True beside'):
        backbone.load_state_dict(weights)
    before = backbone.state_dict()['layers.0.blocks.0.attn.pre_proj.weight'].clone()
    backbone.load_state_dict(backbone._warm_started(weights))
    own, qkv = backbone.state_dict(), weights['layers.0.blocks.0.attn.qkv.weight']
    assert torch.equal(own['layers.0.blocks.0.attn.pre_proj.weight'][-8:].flatten(1), qkv[16:])
    assert torch.equal(own['layers.0.blocks.0.attn.pre_proj.weight'][:-8], before[:-8])
    last = 'layers.3.blocks.1.attn.'
    assert torch.equal(own[f'{last}qkv.bias'], weights[f'{last}qkv.bias'])
    kept = next(line for line in log if 'keep their initial values' in line)
    assert 'layers.0.blocks.0.attn.ghost_head' in kept and 'layers.3' not in kept and 'norm3.weight' in kept


def test_a_part_of_swin_is_refused():
    """A Swin Transformer that lacks a tensor is named, before its tensors are compared."""
    weights = swin_of_torchvision().state_dict()
    for name in ('features.1.0.attn.qkv.weight', 'features.2.norm.weight', 'features.0.0.bias'):
        given = {key: value for key, value in weights.items() if key != name}
        with pytest.raises(CheckpointError, match='lack'):
            SwinFrame(ARCH).load_state_dict(given)


@pytest.mark.parametrize(
    'token_mixer, share', [(dict(type='WindowAttention'), '0.0 %'), (dict(type='DepthwiseConv'), '[1-9][0-9.]* %')]
)
def test_the_log_says_how_far_a_start_is_from_its_source(tmp_path, log, token_mixer, share):
    """The maps of the first pass are compared with those of the Swin Transformer in the file, whose windows are smaller
    than the frame's. This changes neither the mode of any module nor the random generator."""
    torch.save(randomised(swin_of_timm(160, 5)).state_dict(), tmp_path / 'swin.pth')
    window = 5 if 'Window' in token_mixer['type'] else 7
    frame = SwinFrame(ARCH, token_mixer, window, out_indices=(2, 3), frozen_stages=1)
    state = torch.random.get_rng_state()
    frame.layers[1].blocks[0].eval()  # by hand
    modes = [module.training for module in frame.modules()]
    frame.load_pretrained(tmp_path / 'swin.pth', warm_start=True)
    assert [module.training for module in frame.modules()] == modes and frame.training
    assert torch.equal(state, torch.random.get_rng_state())
    (line,) = (line for line in log if 'first pass' in line)
    assert re.search(f'differs from that of a Swin Transformer by {share}, {share}, map by map', line)


TWO = dict(arch=dict(embed_dim=8, depths=(1, 1), num_heads=(1, 2)), out_indices=(0, 1))


def first_pass(folder, log, trained, stages, **changed):
    """What the log says of the first pass of a frame that starts from another one, after a change of its tensors."""
    noted = dict(state_dict={**trained.state_dict(), **changed}, meta=dict(mmattn={'': trained.settings_note}))
    torch.save(noted, folder / 'swin.pth')
    SwinFrame(attention=stages, **TWO).load_pretrained(folder / 'swin.pth', warm_start=True)
    return [line.partition('first pass ')[2] for line in log if 'first pass' in line][-1]


def test_the_source_is_that_of_the_file(tmp_path, log):
    """Windows of the source are those of each stage. Settings that only the source's token mixer has may differ: then
    nothing is compared. Where this frame has them too, they are refused."""
    windows = [dict(type='WindowAttention', window_size=side) for side in (3, 5)]
    ghosts = [dict(each, ghost_size=3) for each in windows]
    said = first_pass(tmp_path, log, randomised(SwinFrame(attention=windows, **TWO)), ghosts)
    assert said.startswith('differs from that of a Swin Transformer by 0.0 %, 0.0 %')
    others = SwinFrame(attention=dict(type='LocalAttention', area='neighbours', kernel_size=9), **TWO)
    said = first_pass(tmp_path, log, others, dict(type='DepthwiseConv'))
    assert said.startswith(
        "was not compared: the weights were trained with attention[0]='LocalAttention' instead of 'Win"
    )
    with pytest.raises(
        CheckpointError, match="trained with attention.0.='LocalAttention' .* give SwinFrame the settings"
    ):
        first_pass(tmp_path, log, others, ghosts)


def test_a_start_from_the_layout_of_elsa():
    """Its windows project the values first, and their table is by key minus query: Swin's attention is the same."""
    windows = dict(type='LocalAttention', area='window', terms=['qk', 'b'])
    source, frame = randomised(SwinFrame(attention=windows, **TWO)), SwinFrame(**TWO).eval()
    frame.load_state_dict(frame._warm_started(source.state_dict()))
    x = torch.rand(1, 3, 75, 133)
    with torch.no_grad():
        for a, b in zip(frame(x), source(x), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_huge_windows_are_not_compared(tmp_path, log):
    """The biases of windows of 1000 x 1000 pixels would not fit in memory."""
    table = {'layers.0.blocks.0.attn.relative_position_bias_table': torch.zeros(1999**2, 1)}
    said = first_pass(tmp_path, log, SwinFrame(**TWO), dict(type='DepthwiseConv'), **table)
    assert 'was not compared: layers.0.blocks.0.attn.relative_position_bias_table (3996001, 1) is for windows' in said


class OnlyOnGPUs(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = torch.nn.Linear(dim, dim)

    def forward(self, x):
        raise NotImplementedError('no kernel for the CPU')


def test_a_token_mixer_that_does_not_run_here(tmp_path, log, monkeypatch):
    """It starts all the same, and the log has its error. A mistake in the source is not hidden."""
    said = first_pass(tmp_path, log, SwinFrame(**TWO), dict(type=OnlyOnGPUs))
    assert said == 'was not compared, since it failed on cpu: NotImplementedError: no kernel for the CPU'
    monkeypatch.setattr(swin_weights, 'source_config', lambda *_: None.arch)
    with pytest.raises(AttributeError):
        first_pass(tmp_path, log, SwinFrame(**TWO), dict(type=OnlyOnGPUs))
