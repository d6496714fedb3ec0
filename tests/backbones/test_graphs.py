"""torch.compile makes one graph of each backbone. The graph serves images of every size."""

import ast
import copy

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend

from mmattn.backbones import ELSASwin
from tests import ROOT
from tests.backbones.cases import CASES

#: multiples of windows, patches and reductions, and others; square and not; longer and shorter than GSA's tables
SIZES = ((70, 101), (96, 64), (64, 64), (129, 75))

#: a graph takes minutes, and a backbone that is another one with other settings has nothing new to trace; of NAT and
#: DiNAT, which have an operator of their own, the second one
OWN = {name: case for name, case in CASES.items() if not case.of_another or name == 'DiNAT'}
every_backbone = pytest.mark.parametrize('case', OWN.values(), ids=OWN)

pytestmark = pytest.mark.usefixtures('torch_compiles')


def build(case, **settings):
    return case.build(case.tiny, **{'drop_path_rate': 0.0, **settings})


def step(model, backbone, x):
    """Maps and gradients of one step. Every call draws the same random numbers and restores the running statistics."""
    state = copy.deepcopy(backbone.state_dict())
    backbone.zero_grad()
    torch.manual_seed(1)
    maps = model(x)
    sum(out.square().mean() for out in maps).backward()
    backbone.load_state_dict(state)
    return maps, [p.grad.clone() for p in backbone.parameters() if p.requires_grad]


def compile_once(backbone, backend, sizes=SIZES, dynamic=True, channels_last=False, batch=2):
    """Compile, and compare with eager mode at every size. Returns the number of graphs after each size."""
    torch._dynamo.reset()
    counts, graphs = [], []

    def counting(graph, inputs):
        graphs.append(graph)
        return lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(backbone, fullgraph=True, dynamic=dynamic, backend=counting)
    for size in sizes:
        x = torch.randn(batch, 3, *size)
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


def test_no_numbers_in_globals():
    """torch.compile makes an input of a float that is a global, and where recomputed blocks read it, the second one
    fails. Layers and operators have it where they use it, or as an attribute. Warm starts are not compiled."""
    files = {*ROOT.glob('mmattn/ops/**/*.py'), *ROOT.glob('mmattn/layers/**/*.py')} - {ROOT / 'mmattn/layers/starts.py'}
    statements = [(file.name, node) for file in files for node in ast.parse(file.read_text()).body]
    values = [(name, getattr(node, 'value', None)) for name, node in statements]
    assert [name for name, value in values if type(getattr(value, 'value', None)) is float] == []


def test_one_forward_graph():
    """The stem and a stage are traced without a break, and another size needs no new graph. Slow tests compile all
    backbones."""
    counts = compile_once(build(CASES['ShuntedTransformer'], out_indices=(0,)).eval(), 'eager')
    assert counts == counts[:1] * len(SIZES)


@pytest.mark.slow
@every_backbone
@pytest.mark.parametrize(
    'settings',
    [
        dict(),
        dict(channels_last=True),
        dict(train=True),
        dict(train=True, drop_path_rate=0.3),
        dict(train=True, with_cp=True),
    ],
    ids=str,
)
def test_one_graph(case, settings):
    """The forward and backward graph gives the results of eager mode, and another size needs no new graph: for
    channels-last images, in training, with stochastic depth, and with recomputed blocks, too."""
    train, channels_last = settings.get('train', False), settings.get('channels_last', False)
    settings = {key: value for key, value in settings.items() if key not in ('train', 'channels_last')}
    counts = compile_once(build(case, **settings).train(train), 'aot_eager', channels_last=channels_last)
    assert counts == counts[:1] * len(SIZES)


@pytest.mark.slow
@every_backbone
def test_goes_dynamic_by_itself(case):
    """Without dynamic=True, the graph of the second size serves all further sizes."""
    sizes = ((70, 101), (129, 75), *SIZES, (40, 257))
    counts = compile_once(build(case).eval(), 'aot_eager', sizes, None)
    assert counts[1:] == counts[1:2] * (len(sizes) - 1)


@pytest.mark.slow
@every_backbone
def test_inductor(case):
    """The default backend gives the same results, forward and backward, and compiles once."""
    # Inductor compiles again where a sum passes 4096 numbers, as that of TransNeXt's table from (96, 64) to (64, 64).
    sizes = (*SIZES[:2], (80, 80))
    with torch._inductor.config.patch(layout_optimization=False):
        counts = compile_once(build(case).eval(), 'inductor', sizes)
    assert counts == counts[:1] * len(sizes)


@pytest.mark.slow
def test_stored_parts_bind_no_size():
    """A graph does not depend on how inductor stores the parts of a map that the backward pass needs. A narrower
    ELSA-Swin or two images would not show it: there, inductor stores the parts as they are traced."""
    arch = dict(embed_dim=96, depths=(1, 1, 1, 1), num_heads=(3, 6, 12, 24), group_width=4)
    backbone = ELSASwin(arch=arch, drop_path_rate=0.0, out_indices=(0,)).eval()
    with torch._inductor.config.patch(layout_optimization=False):
        counts = compile_once(backbone, 'inductor', ((192, 256), (224, 272)), batch=1)
    assert counts[1] == counts[0]
