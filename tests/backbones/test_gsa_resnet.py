import copy
import sys
import weakref

import mmdet.models
import pytest
import timm
import torch
import torchvision
from mmcv.cnn import fuse_conv_bn
from mmengine.runner.checkpoint import load_state_dict
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import FlopCounterMode

from mmattn.backbones import GSAResNet, SwinFrame
from mmattn.backbones.gsa_resnet import after_relu
from mmattn.layers import GlobalSelfAttention
from mmattn.ops.any_size import average_pool
from mmattn.ops.global_self_attention import BEYOND
from mmattn.packages import version_numbers
from mmattn.weights import CheckpointError, noise_image
from tests.backbones.test_swin import OnlyOnGPUs

#: tensors of attention that are scaled beside weights of a ResNet
SCALED = ('query.weight', 'running_mean', 'running_var')
SMALL = dict(depth=dict(depths=(1, 2, 1, 1), stem_channels=8, base_channels=4, expansion=2), num_heads=2, img_size=64)


def randomised(model):
    """A model whose batch norms have statistics, scales and offsets of their own."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.running_var):
                nn.init.uniform_(tensor, 0.5, 1.5)
            for tensor in (module.bias, module.running_mean):
                nn.init.normal_(tensor, std=0.1)
    model.eval()  # MMDetection's returns None
    return model


def test_without_attention_it_is_a_resnet():
    """Without attention it computes what torchvision's ResNet computes, in float64, at odd sizes."""
    theirs = randomised(torchvision.models.resnet50(weights=None)).double()
    ours = GSAResNet(depth=50, gsa_stages=()).double().eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 3, 75, 98, dtype=torch.float64)
    with torch.no_grad():
        maps = ours(x)
        x = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(x))))
        for out, layer in zip(maps, (theirs.layer1, theirs.layer2, theirs.layer3, theirs.layer4), strict=True):
            x = layer(x)
            torch.testing.assert_close(out, x)


#: a small ResNet as each code base has it, and its depth here. torchvision's and timm's width is that of inner layers.
RESNETS = {
    'torchvision': (
        lambda: torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, [1, 2, 1, 1], width_per_group=4),
        dict(depths=(1, 2, 1, 1), stem_channels=64, base_channels=4, expansion=64),
    ),
    'timm': (
        lambda: timm.models.ResNet(timm.models.resnet.Bottleneck, (1, 2, 1, 1), base_width=4),
        dict(depths=(1, 2, 1, 1), stem_channels=64, base_channels=4, expansion=64),
    ),
    'mmdet': (
        lambda: mmdet.models.ResNet(50, base_channels=4, stem_channels=8),
        dict(depths=(3, 4, 6, 3), stem_channels=8, base_channels=4, expansion=4),
    ),
}


@pytest.mark.parametrize(
    'source, size, dtype',
    [
        ('torchvision', (75, 98), torch.float64),
        *(pytest.param(source, (75, 98), torch.float64, marks=pytest.mark.slow) for source in ('timm', 'mmdet')),
        pytest.param('torchvision', (224, 224), torch.float32, marks=pytest.mark.slow),
    ],
)
def test_beside_the_convolutions_it_starts_as_the_resnet(source, size, dtype, tmp_path, log):
    """Weights of each code base fill everything but the attention, which changes no map. The log says so."""
    make, depth = RESNETS[source]
    theirs = randomised(make())
    torch.save(theirs.state_dict(), tmp_path / 'resnet.pth')
    ours = GSAResNet(depth, gsa_stages=(0, 1, 2, 3), num_heads=2, keep_conv=True).eval()
    ours.load_pretrained(tmp_path / 'resnet.pth')
    (line,) = (line for line in log if 'first pass' in line)
    assert 'differs from that of a ResNet by 0.0 %, 0.0 %, 0.0 %, 0.0 %' in line
    assert not any('conv2' in line for line in log)
    theirs, ours, x = theirs.to(dtype), ours.to(dtype), torch.randn(1, 3, *size, dtype=dtype)
    with torch.no_grad():
        maps = ours(x)
        x = theirs.maxpool(torch.relu(theirs.bn1(theirs.conv1(x))))
        for out, layer in zip(maps, (theirs.layer1, theirs.layer2, theirs.layer3, theirs.layer4), strict=True):
            x = layer(x)
            torch.testing.assert_close(out, x)


@pytest.mark.parametrize('block', ['layer2.0', 'layer2.1'])
def test_attention_is_added_to_the_convolution(block):
    """Times a factor for each channel, also where the block halves the map: there attention is pooled. The factor
    learns first, since it starts at 0; after it, attention does."""
    block = GSAResNet(**SMALL, keep_conv=True, zero_init_residual=False).double().eval().get_submodule(block)
    x = torch.randn(2, block.conv1.in_channels, 7, 10, dtype=torch.float64)
    inner, sums = torch.relu(block.bn1(block.conv1(x))), []
    block.bn2.register_forward_pre_hook(lambda norm, inputs: sums.append(inputs[0]))
    for value in (0.0, 0.5):
        nn.init.constant_(block.attn_scale[1:], value)
        block.zero_grad()
        block(x).sum().backward()
        attention = average_pool(block.attn(inner.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        attention = attention if block.stride == 2 else block.attn(inner.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        torch.testing.assert_close(sums[-1], block.conv2(inner) + block.attn_scale.view(-1, 1, 1) * attention)
        assert block.attn_scale.grad.all() and bool(block.attn.query.weight.grad.any()) == (value > 0)


def test_fused_norms_beside_the_convolutions():
    """MMCV's fuse_conv_bn does not join the norm of the sum with the convolution."""
    backbone = randomised(GSAResNet(**SMALL, keep_conv=True, zero_init_residual=False))
    for name, parameter in backbone.named_parameters():
        if name.endswith('attn_scale'):
            nn.init.normal_(parameter)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for out, expected in zip(fuse_conv_bn(copy.deepcopy(backbone))(x), backbone(x), strict=True):
            torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_starts_warm_from_a_resnet(tmp_path, log):
    """torchvision's weights fill everything but attention, which is scaled to them. The log names what is
    left out and what is not in them."""
    with torch.device('meta'):
        layout = torchvision.models.resnet50(weights=None).state_dict()
    weights = {
        name: torch.full(value.shape, i / 1000).to(value.dtype) for i, (name, value) in enumerate(layout.items())
    }
    torch.save(weights, tmp_path / 'resnet.pth')
    backbone = GSAResNet(50, img_size=64, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'resnet.pth')))
    fresh = {name: value.clone() for name, value in backbone.state_dict().items() if '.attn.' in name}
    backbone.init_weights()
    for name, value in backbone.state_dict().items():
        if name not in fresh:
            assert torch.equal(value, weights[name].to(value.dtype))
        elif not name.endswith(SCALED):
            assert torch.equal(value, fresh[name])
    replaced = [name for name in layout if name.endswith('conv2.weight') and not name.startswith('layer1')]
    assert f'GSAResNet: left out: {", ".join(replaced)}, fc.weight, fc.bias' in log
    assert f'GSAResNet: start untrained: {", ".join(fresh)}' in log


def test_says_where_positions_end(log):
    """If nobody has chosen how far attention by position reaches, and an image is larger, the log says so once."""
    chosen = dict(img_size=224), dict(beyond='stretch'), dict(neighbourhood=3), dict(gsa_stages=())
    own = {key: value for key, value in SMALL.items() if key != 'img_size'}
    silent, gsa = [GSAResNet(**{**own, **settings}).eval() for settings in chosen], GSAResNet(**own).eval()
    arch = dict(embed_dim=8, depths=(1, 1), num_heads=(1, 2))
    mixed = SwinFrame(arch, attention=dict(type='GlobalSelfAttention'), out_indices=(1,)).eval()
    for backbone in (*silent, gsa, mixed):
        backbone(torch.zeros(1, 3, 32, 224))
    assert not any('ends at' in line for line in log)
    for backbone in (*silent, gsa, gsa, mixed, mixed):
        backbone(torch.zeros(1, 3, 32, 225))
    end = 'attention by position ends at 224 pixels, but an image has 32 x 225'
    assert [line for line in log if 'ends at' in line] == [
        f'GSAResNet: {end}: set img_size to the longest side of a training image',
        f"SwinFrame: {end}: give GlobalSelfAttention rel_pos_length, the longest side of its map, or beyond='stretch'",
    ]


DEEP = dict(depth=dict(depths=(2, 3, 4, 2), stem_channels=16, base_channels=16, expansion=2), num_heads=4, img_size=64)


@pytest.fixture
def plain():
    """A plain ResNet whose norms have scales and offsets of their own, and the statistics of some images."""
    model = randomised(GSAResNet(**DEEP, gsa_stages=())).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the statistics of all images since the reset
            module.reset_running_stats()
        if hasattr(module, 'bn3'):
            module.bn3.weight.data *= 0.3  # a branch is smaller than its shortcut
    with torch.no_grad():
        model(smooth_images(16))
    return model.eval()


def smooth_images(number):
    return nn.functional.interpolate(torch.randn(number, 3, 8, 8), (64, 64), mode='bicubic')


@pytest.mark.parametrize(
    'settings',
    [
        dict(),
        dict(content=False, row=False),
        dict(column=False, row=False),
        dict(content='axial'),
        dict(content='axial', column=False),
        dict(axial_softmax=True),
        dict(neighbourhood=5),
        dict(softmax_queries=True),
        dict(keep_conv=True),
    ],
    ids=str,
)
def test_attention_starts_at_the_size_that_the_next_norm_knows(plain, settings):
    """Beside weights of a ResNet, attention of any initial size is scaled to the variance of the next norm. So maps of
    other images are as large as the ResNet's in evaluation, too. It makes no difference whether backbone or whole model
    loads the weights. Modules keep their modes."""
    for init_cfg in (dict(type='Kaiming', layer='Conv2d'), None):
        torch.manual_seed(1)
        backbone = GSAResNet(**DEEP, **settings, init_cfg=init_cfg)
        backbone.init_weights()
        backbone.layer1.eval()  # by hand
        modes = [module.training for module in backbone.modules()]
        twin = copy.deepcopy(backbone)
        backbone.load_state_dict(plain.state_dict())
        whole = nn.ModuleDict(dict(backbone=twin))
        load_state_dict(whole, {f'backbone.{name}': value for name, value in plain.state_dict().items()})
        own = backbone.state_dict()
        for name, value in twin.state_dict().items():
            assert torch.equal(value, own[name])
        assert [module.training for module in backbone.modules()] == modes
        norms = [module.bn for module in backbone.modules() if getattr(module, 'bn', None) is not None]
        assert all(len(norm.running_var.unique()) == 1 for norm in norms)  # a small one would make its channel huge

        inputs = []
        blocks = [block for block in backbone.modules() if getattr(block, 'attn', None) is not None]
        for block in blocks:
            block.attn.register_forward_hook(
                lambda attn, args, out, block=block, inputs=inputs: inputs.append(block.pooled(out))
            )
        with torch.no_grad():
            backbone.eval()(noise_image(3, 64, count=8))
            for block, x in zip(blocks, inputs, strict=True):
                assert x.var() == pytest.approx(block.bn2.running_var.mean(), rel=0.1)  # eps
            images = smooth_images(4)
            for ours, theirs in zip(backbone(images), plain(images)):
                assert 0.5 < ours.std() / theirs.std() < 2


def test_own_attention_that_does_not_run_here(tmp_path, log):
    """It is not scaled, so nothing runs before the first passes are compared."""
    torch.save(GSAResNet(**SMALL, gsa_stages=()).state_dict(), tmp_path / 'resnet.pth')
    GSAResNet(**SMALL, attention=dict(type=OnlyOnGPUs)).load_pretrained(tmp_path / 'resnet.pth')
    assert any('was not compared, since it failed on cpu: NotImplementedError' in line for line in log)


def test_a_start_that_fails_leaves_no_hooks():
    """They would scale attention again in each later pass."""
    backbone = GSAResNet(**SMALL, attention=[None, None, None, dict(type=OnlyOnGPUs)])
    with pytest.raises(NotImplementedError):
        backbone.load_state_dict(GSAResNet(**SMALL, gsa_stages=()).state_dict())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in backbone.modules())


@pytest.mark.parametrize('settings', [dict(img_size=1), dict(norm_cfg=dict(type='BN', track_running_stats=False))])
def test_attention_starts_finite(settings):
    """Also where the smallest map is one pixel, and where norms have learned no variance."""
    settings = {**SMALL, **settings}
    backbone = GSAResNet(**settings)
    backbone.load_state_dict(GSAResNet(**settings, gsa_stages=()).state_dict())
    assert all(value.isfinite().all() for value in backbone.state_dict().values())


def test_own_checkpoints_are_strict():
    """A checkpoint with attention is never taken for one of a plain ResNet: a missing tensor of attention is an error,
    and so are other groups with attention."""
    whole = GSAResNet(**SMALL)
    weights = whole.state_dict()
    other = GSAResNet(**SMALL)
    other.load_state_dict(weights)
    assert all(torch.equal(value, weights[name]) for name, value in other.state_dict().items())
    with pytest.raises(CheckpointError, match='have attention: leave warm_start out'):
        other._warm_started(weights)
    part = GSAResNet(**SMALL, out_indices=(0, 1))
    part.load_state_dict(weights)
    assert torch.equal(part.layer2[1].attn.rel_row, whole.layer2[1].attn.rel_row)
    with pytest.raises(CheckpointError, match='1 missing: layer2.1.attn.rel_row'):
        other.load_state_dict({name: value for name, value in weights.items() if name != 'layer2.1.attn.rel_row'})
    for gsa_stages in ((), (2, 3), (0, 1, 2, 3)):
        with pytest.raises(CheckpointError, match='missing'):
            GSAResNet(**SMALL, gsa_stages=gsa_stages).load_state_dict(weights)


@pytest.mark.parametrize('beyond', BEYOND)
def test_tables_are_fitted_to_another_img_size(log, beyond):
    """Tables for a smaller img_size are resized by either rule, and the maps stay the same; the log says so."""
    settings = dict(SMALL, beyond=beyond, zero_init_residual=False)  # else no block adds anything to the maps
    small, large = (GSAResNet(**{**settings, 'img_size': side}).eval() for side in (64, 128))
    large.load_state_dict(small.state_dict())
    assert 'layer2.0.attn.rel_col resized from (31, 4) to (63, 4)' in log
    x = torch.randn(1, 3, 128, 128)
    for a, b in zip(small(x), large(x)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize('depth', [38, pytest.param(101, marks=pytest.mark.slow), SMALL['depth']], ids=str)
@pytest.mark.parametrize('gsa_stages', [(0, 1, 2, 3), (1, 2, 3)])
def test_untrained_maps_are_of_the_size_of_the_image(depth, gsa_stages):
    """In evaluation, where norms do not bound attention, which is cubic in its input. An image gives the same maps
    alone and in a batch."""
    settings = dict(num_heads=2) if isinstance(depth, dict) else {}
    backbone = GSAResNet(depth, gsa_stages=gsa_stages, **settings)
    backbone.init_weights()
    x = torch.randn(2, 3, 128, 160)
    with torch.no_grad():
        maps, alone = backbone.eval()(x), backbone(x[1:])
    assert all(0.01 < out.std() < 1 and out.abs().max() < 10 for out in maps)
    for out, expected in zip(maps, alone, strict=True):
        torch.testing.assert_close(out[1:], expected)


def test_blocks_start_as_their_shortcuts():
    """By default, and not with zero_init_residual=False, before and after init_weights(). A scale that norm_cfg freezes
    stays 1, because it could not be learned. Every scale learns in the first step."""
    for settings, value in (
        (dict(), 0),
        (dict(zero_init_residual=False), 1),
        (dict(norm_cfg=dict(type='BN', requires_grad=False)), 1),
    ):
        backbone = GSAResNet(**SMALL, **settings)
        for _ in range(2):
            last = [m.bn3.weight for m in backbone.modules() if hasattr(m, 'bn3')]
            assert len(last) == 5 and all((weight == value).all() for weight in last)
            backbone.init_weights()
        sum(out.square().mean() for out in backbone(torch.randn(2, 3, 64, 64))).backward()
        assert all(weight.grad is None or weight.grad.any() for weight in last)
    GSAResNet(**SMALL, norm_cfg=dict(type='BN', affine=False))


def test_positions_start_as_large_as_their_input():
    """A sum over all pixels of a line, whatever its length and the width of the heads."""
    for length, heads in ((8, 1), (64, 1), (64, 8)):
        layer = GlobalSelfAttention(64, heads, rel_pos_length=length, content=False, row=False, project=False)
        with torch.no_grad():
            torch.nn.init.dirac_(layer.query.weight)
            torch.nn.init.dirac_(layer.value.weight)
            assert layer(torch.randn(1, length, 20, 64)).std() == pytest.approx(1, rel=0.3)


def test_odd_maps_are_pooled_whole():
    """Where a group with attention halves an odd map, the last row and column are pooled alone."""
    block = GSAResNet(**SMALL).layer2[0].eval()
    block.attn = nn.Identity()
    x = torch.zeros(1, 8, 5, 5)
    x[..., -1] = 1.0
    pooled = []
    block.bn2.register_forward_pre_hook(lambda module, args: pooled.append(args[0]))
    block(x), block(torch.zeros_like(x))
    with torch.no_grad():
        inner = torch.relu(block.bn1(block.conv1(x)))
    torch.testing.assert_close(pooled[0][..., -1, -1], inner[..., -1, -1])
    torch.testing.assert_close(pooled[0][..., :2, :2], nn.functional.avg_pool2d(inner, 2))


def test_tables_are_as_long_as_the_map():
    """L is img_size divided by the stride of the module's map."""
    backbone = GSAResNet(depth=38, gsa_stages=(0, 3), num_heads=4, img_size=230)
    modules = {name: m for name, m in backbone.named_modules() if isinstance(m, GlobalSelfAttention)}
    assert list(modules) == ['layer1.0.attn', 'layer1.1.attn', 'layer4.0.attn', 'layer4.1.attn']
    assert [len(m.rel_row) for m in modules.values()] == [2 * L - 1 for L in (58, 58, 15, 8)]


def test_tables_of_a_neighbourhood_may_grow():
    """New rows are zero, so the maps are the same."""
    near = GSAResNet(**SMALL, zero_init_residual=False, neighbourhood=5)
    whole = GSAResNet(**SMALL, zero_init_residual=False)
    whole.load_state_dict(near.state_dict())
    image = torch.randn(1, 3, 37, 61)
    torch.testing.assert_close(whole.eval()(image), near.eval()(image))


def test_settings_of_old_checkpoints(tmp_path):
    """A checkpoint that does not name the newer settings loads into the form that has their defaults."""
    backbone = GSAResNet(**SMALL)
    path = tmp_path / 'weights.pth'
    note = dict(type='GSAResNet', norm_eps=1e-5, num_heads=2, beyond='mask')
    torch.save(dict(state_dict=backbone.state_dict(), meta=dict(mmattn={'': note})), path)
    GSAResNet(**SMALL).load_pretrained(path)
    with pytest.raises(CheckpointError, match='beyond'):
        GSAResNet(**SMALL, beyond='stretch').load_pretrained(path)


@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(gsa_stages=(1,), attention=[dict(type='ELSA'), None, None, None]), 'group without attention'),
        (dict(gsa_stages=(1, 4)), 'gsa_stages'),
        (dict(img_size=0), 'img_size'),
    ],
)
def test_impossible_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        GSAResNet(**wrong)


@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 7), reason='weak references to storages crash torch 2.1')
@pytest.mark.parametrize('with_cp', [False, True])
def test_a_step_keeps_no_map_twice(with_cp, monkeypatch):
    """The maps between norms and convolutions are computed again in the backward pass, and the convolutions are not.
    Gradients and statistics are those of a step that keeps all maps, to the last bit. Blocks that are recomputed as a
    whole keep nothing of what is inside."""
    alive, found = [], []

    class Alive(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            alive.extend(weakref.ref(x.untyped_storage()) for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor))
            return out

    def kept():
        """Bytes of the results so far that are still in memory."""
        storages = {s.data_ptr(): s.nbytes() for s in (reference() for reference in alive) if s is not None}
        return sum(storages.values())

    arch = dict(depths=(2, 2), stem_channels=16, base_channels=16, expansion=2)
    backbone = GSAResNet(depth=arch, gsa_stages=(1,), out_indices=(0, 1), zero_init_residual=False, with_cp=with_cp)
    state, images = copy.deepcopy(backbone.state_dict()), torch.randn(2, 3, 96, 96)
    for recomputed in (True, False):
        if not recomputed:
            monkeypatch.setattr('mmattn.backbones.gsa_resnet.recompute', lambda block, x, **_: block(x))
        backbone.load_state_dict(state)
        backbone.zero_grad()
        alive.clear()
        with FlopCounterMode(display=False) as counter:
            with Alive():
                loss = sum(out.square().mean() for out in backbone(images))
            memory = kept()
            loss.backward()
        result = memory, counter.get_total_flops(), backbone.state_dict(), [p.grad for p in backbone.parameters()]
        found.append(copy.deepcopy(result))
    (less, operations, *ours), (more, expected, *theirs) = found
    assert less < 0.85 * more and operations == expected
    for one, other in zip(tree_flatten(ours)[0], tree_flatten(theirs)[0], strict=True):
        assert one.equal(other)


@pytest.mark.parametrize('train', [True, False])
@pytest.mark.parametrize('frozen', [True, False])
@pytest.mark.parametrize('autocast', [True, False])
@pytest.mark.parametrize('make', [nn.BatchNorm2d, nn.SyncBatchNorm, nn.Identity])
def test_norms_before_convolutions(make, autocast, frozen, train):
    """Gradients are those without recomputation, to the bit: with frozen weights, under autocast, and if the model has
    left training mode before the backward pass. Only a batch norm of one process is computed again. MMCV's fuse_conv_bn
    sets nn.Identity, which returns the map that ReLU changes."""
    if make is nn.SyncBatchNorm and train:
        pytest.skip('needs a GPU')
    norm, conv, calls = make(4).train(train).requires_grad_(not frozen), nn.Conv2d(4, 8, 3), []
    norm.register_forward_hook(lambda *_: calls.append(1))
    found = []
    for call in (lambda x: after_relu(norm, conv, x), lambda x: conv(norm(x).relu())):
        x = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0)).requires_grad_()
        norm.train(train)
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            loss = call(x * 1).pow(3).sum()
        norm.eval()
        found.append(
            torch.autograd.grad(loss, [p for p in (x, *norm.parameters(), *conv.parameters()) if p.requires_grad])
        )
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert len(calls) == 2 + (make is nn.BatchNorm2d)


@pytest.mark.skipif(sys.version_info < (3, 11), reason='a call holds its arguments')
def test_inference_frees_maps_before_norms():
    """None of them is in memory when the layer after the norm computes."""
    backbone, before = GSAResNet(**SMALL).eval(), {}

    def check(module, inputs):
        assert [reference() for reference in before.values()] == [None] * len(before)
        before.clear()

    for block in backbone.modules():
        if hasattr(block, 'bn3'):
            pairs = [(block.bn2, block.conv3)] + ([(block.bn1, block.conv2)] if block.attn is None else [])
            for norm, layer in pairs:
                norm.register_forward_pre_hook(lambda norm, inputs: before.update({norm: weakref.ref(inputs[0])}))
                layer.register_forward_pre_hook(check)
    with torch.no_grad():
        backbone(torch.randn(1, 3, 64, 64))
