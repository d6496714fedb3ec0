"""torch.compile and torch.export take every backbone as one graph, which holds for every size of picture."""

import copy

import pytest
import torch
from mmengine.registry import MODELS
from torch._dynamo.backends.registry import lookup_backend

import mmattn  # noqa: F401, registers the backbones

#: two stages with all that the whole has: tracing takes seconds a block
TINY = {
    'ELSASwin': dict(
        arch=dict(embed_dim=8, depths=(1, 2), num_heads=(1, 2), group_width=4),
        kernel_size=3,
        window_size=3,
        elsa_stages=(0,),
        out_indices=(0, 1),
    ),
    'GSAResNet': dict(
        depth=dict(depths=(1, 1), stem_channels=8, base_channels=4, expansion=2),
        gsa_stages=(1,),
        num_heads=2,
        img_size=64,
        out_indices=(0, 1),
    ),
    'ShuntedTransformer': dict(
        arch=dict(embed_dims=(8, 8), depths=(1, 1), num_heads=(2, 2), stem_convs=0),
        mlp_ratios=(2, 2),
        reductions=(4, 1),
        out_indices=(0, 1),
    ),
    'MSFViT': dict(arch=dict(embed_dim=16, depth=2, num_heads=2), out_indices=(0, 1)),
    'MSFSwin': dict(arch=dict(embed_dim=8, depths=(2, 1), num_heads=(1, 2)), window_size=3, out_indices=(0, 1)),
}
#: divided by windows, patches and reductions or not, square or not, longer and shorter than GSA's tables
SIZES = ((70, 101), (96, 64), (64, 64), (129, 75))

pytestmark = pytest.mark.usefixtures('torch_compiles')
every_backbone = pytest.mark.parametrize('name', TINY)


def build(name, **settings):
    return MODELS.build(dict(type=name, **{**copy.deepcopy(TINY[name]), 'drop_path_rate': 0.0, **settings}))


def step(model, backbone, x):
    """Maps and gradients of one step; random choices and running statistics as at the first step."""
    state = copy.deepcopy(backbone.state_dict())
    backbone.zero_grad()
    torch.manual_seed(1)
    maps = model(x)
    sum(out.square().mean() for out in maps).backward()
    backbone.load_state_dict(state)
    return maps, [p.grad.clone() for p in backbone.parameters() if p.requires_grad]


def compile_once(backbone, backend, sizes=SIZES, dynamic=True, channels_last=False):
    """Compile, compare with eager mode at every size; how many graphs there were after each."""
    torch._dynamo.reset()
    counts, graphs = [], []

    def counting(graph, inputs):
        graphs.append(graph)
        return lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(backbone, fullgraph=True, dynamic=dynamic, backend=counting)
    for size in sizes:
        x = torch.randn(2, 3, *size)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        (maps, grads), (expected_maps, expected_grads) = step(compiled, backbone, x), step(backbone, backbone, x)
        for out, expected in zip(maps, expected_maps, strict=True):
            assert out.is_contiguous()
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        for grad, expected in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(grad, expected, atol=1e-5, rtol=1e-4)
        counts.append(len(graphs))
    return counts


@pytest.mark.parametrize(
    'name', [name if name == 'ShuntedTransformer' else pytest.param(name, marks=pytest.mark.slow) for name in TINY]
)
def test_one_graph(name):
    """Compiled whole, forward and backward, with the results of eager mode, and never again for another size."""
    counts = compile_once(build(name).eval(), 'aot_eager')
    assert counts == counts[:1] * len(SIZES)


@pytest.mark.slow
@every_backbone
@pytest.mark.parametrize(
    'settings',
    [dict(channels_last=True), dict(train=True), dict(train=True, drop_path_rate=0.3), dict(train=True, with_cp=True)],
    ids=str,
)
def test_one_graph_of_any_kind(name, settings):
    """Likewise of channels-last pictures, in training, with stochastic depth, and with recomputed blocks."""
    train, channels_last = settings.get('train', False), settings.get('channels_last', False)
    settings = {key: value for key, value in settings.items() if key not in ('train', 'channels_last')}
    counts = compile_once(build(name, **settings).train(train), 'aot_eager', channels_last=channels_last)
    assert counts == counts[:1] * len(SIZES)


@pytest.mark.slow
@every_backbone
def test_goes_dynamic_by_itself(name):
    """Without dynamic=True, the second size makes the graph of all further ones."""
    sizes = ((70, 101), (129, 75), *SIZES, (40, 257))
    counts = compile_once(build(name).eval(), 'aot_eager', sizes, None)
    assert counts[1:] == counts[1:2] * (len(sizes) - 1)


@pytest.mark.slow
@every_backbone
def test_inductor(name):
    """The default backend: same results, forward and backward, compiled once."""
    sizes = SIZES[:3]  # the fourth has a map of more than 4096 pixels, over which inductor sums in another way
    with torch._inductor.config.patch(layout_optimization=False):
        counts = compile_once(build(name).eval(), 'inductor', sizes)
    assert counts == counts[:1] * len(sizes)
