import functools
import re
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
import yaml
from mmengine.config import Config

from mmattn.analysis import compare_with_paper, complexity, count_config, count_model, count_operations
from mmattn.analysis.complexity import unpadded
from mmattn.layers import ELSA, EnhancedAttention, MeanShiftAttention, WindowAttention
from mmguard.runs.rows import read_row
from tests import ROOT
from tests.analysis.open_figures import OPEN
from tests.backbones.cases import every_backbone
from tests.configs import ENTRIES, GREY, PAPERS
from tests.tools.in_process import run_tool

pytestmark = pytest.mark.usefixtures('any_weights')

CONFIGS = ROOT / 'configs'
read = functools.cache(read_row)


def test_counts_the_operator_and_attention():
    """A layer's operations by hand: projections, Hadamard convolutions, sum, ghost head; and window attention."""
    H, W, C, heads, k, width = 14, 21, 12, 2, 5, 4
    qk = 8

    with torch.device('meta'):
        elsa = ELSA(C, heads, kernel_size=k, group_width=width)
        window = WindowAttention(C, heads, window_size=7)
        x = torch.empty(1, H, W, C)
    per_pixel = C * (2 * qk + C) + qk * width * k * k + qk * heads * k * k + 2 * C * k * k + C * C
    assert count_operations(lambda: elsa(x)) == per_pixel * H * W
    assert count_operations(lambda: window(x)) == (4 * C * C + 2 * 49 * C) * H * W
    shunted = EnhancedAttention(C, heads)  # on the CPU, whose fused attention is an operator of its own
    expected = (4 * C * C + 9 * C + 2 * H * W * C) * H * W
    assert count_operations(lambda: shunted(torch.empty(1, H, W, C))) == expected


def test_padded_heads_are_not_counted():
    """Mean-shift attention off the CPU pads heads of 8 channels to 16. Papers count 8."""
    layer, x = MeanShiftAttention(16, 2).to('meta'), torch.empty(1, 7, 9, 16, device='meta')
    with unpadded(layer):
        count = count_operations(lambda: layer(x))
    assert count == (5 * 16 * 16 + 2 * 63 * 16) * 63 < count_operations(lambda: layer(x))
    assert layer.backend is None


def test_size_of_the_images_of_a_config(tmp_path):
    """An own detector is counted at the size of its test pipeline, and a classifier at that which its config has for
    projects/lab/tools/compare.py."""
    own = tmp_path / 'own.py'
    base = str(ROOT / 'projects/lab/configs/toy/retinanet_shunted-toy_fpn.py')
    steps = "[dict(type='LoadImageFromFile'), dict(type='Resize', scale=(96, 64)), dict(type='PackDetInputs')]"
    own.write_text(f'_base_ = {base!r}\ntest_dataloader = dict(dataset=dict(pipeline={steps}))')
    classifier = tmp_path / 'classifier.py'
    classifier.write_text(GREY + '\ninput_size = (64, 64)\n')
    done = run_tool('complexity', own, classifier)
    assert done.returncode == 0, done.stderr
    sizes = re.findall(r'^(\S+) .* (\d+x\d+) ', done.stdout, re.M)
    assert ('own', '96x64') in sizes and ('classifier', '64x64') in sizes


def test_landmarks():
    """Per head, N tokens and L landmarks have 4 N L d operations, not 2 N N d; landmarks alone have 2 L L d, and those
    of Cholesky's factor."""
    layer, x = MeanShiftAttention(16, 2, landmarks=3), torch.empty(1, 7, 9, 16)
    with unpadded(layer):
        count = count_operations(lambda: layer(x))
    assert count == 5 * 16 * 16 * 63 + 4 * 63 * 9 * 16 + 2 * 9 * 9 * 16 + 2 * 9**3 / 6


def test_other_backbones(tmp_path):
    """The backbone of another package in a detector, whose parameters are those that torchvision has for ResNet-18, and
    a classifier of grey images."""
    (tmp_path / 'detector.py').write_text(f"""
_base_ = {str(ROOT / 'projects/lab/configs/toy/retinanet_shunted-toy_fpn.py')!r}
model = dict(backbone=dict(_delete_=True, type='ResNet', depth=18), neck=dict(in_channels=[64, 128, 256, 512]))
""")
    (tmp_path / 'grey.py').write_text(GREY)
    resnet, grey = (next(compare_with_paper(tmp_path / f'{name}.py', read_row)) for name in ('detector', 'grey'))
    assert resnet.parameters == 11_689_512 and grey.operations > 0


class Layer(torch.nn.Module):
    """A "segmentor" of a linear layer: 8 weights and 2 biases, 8 multiply-adds."""

    decode_head = True

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x.new_empty(1, 4))


@pytest.mark.parametrize(
    'printed, wrong',
    [
        (dict(Parameters=8), 1),
        (dict(Parameters=10), 0),
        (dict(Parameters=8, **{'Parameters Counted': 'matrices'}), 0),
        (dict(FLOPs=16), 1),
        (dict(FLOPs=16, **{'Operations per Multiply-Add': 2}), 0),
        (dict(Parameters=10, FLOPs=16, Unknown='how'), 0),
        (dict(Parameters=8, FLOPs=8, Unknown='how'), 1),
    ],
    ids=['parameters', 'all', 'matrices', 'operations', 'unit', 'unknown', 'unknown-parameters'],
)
def test_counts_in_the_unit_of_the_paper(printed, wrong):
    """A figure of weight matrices, or of two operations per multiply-add, is compared as such, and only then. With
    ``Unknown``, operations are not compared."""
    assert count_model('', Layer(), 'mmseg', dict(Printed=printed)).wrong == wrong


@pytest.mark.parametrize(
    'text, sentence',
    [
        ("model = dict(type='mmpretrain.ImageClassifier', backbone=dict(type='mmattn.ELSASwin'))", 'not a complete'),
        ("default_scope = 'mmseg'\nmodel = dict(type='EncoderDecoder')", 'is not a complete config'),
        (
            "default_scope = 'mmseg'\nmodel = dict(type='EncoderDecoder', backbone=dict(type='ELSASwin', arhc='tiny'))",
            'backbone .ELSASwin.: .* unexpected keyword argument .arhc',
        ),
    ],
)
def test_broken_configs(tmp_path, text, sentence):
    """They are refused in a sentence."""
    (tmp_path / 'a.py').write_text(text)
    assert re.search(f'a.py.*{sentence}', run_tool('complexity', tmp_path / 'a.py').sentence)


#: config of ablations -> how many of its rows have printed sizes that the counts must meet
ABLATIONS = {
    'elsa_swin/ablations/swin-t_in1k': 6,
    'elsa_swin/ablations/deit-ti_in1k': 3,
    'elsa_volo/ablations/volo-d1_in1k': 2,
    'msf/ablations/msf-vit-s_in1k': 21,
    'msf/ablations/vit-s_in1k': 11,
    'shunted/ablations/shunted-s_in1k': 2,
    'shunted/ablations/deit-s_in1k': 0,
    'gsa/ablations/gsa-r50_in1k': 4,
    'gsa/ablations/table-3_in1k': 4,
}


#: few and small models
FAST = 'elsa_swin/ablations/deit-ti_in1k', 'shunted/ablations/deit-s_in1k', 'elsa-swin-t_in1k', 'r38_in1k'


@pytest.mark.parametrize(
    'config', [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in ABLATIONS]
)
def test_rows_have_the_digits_of_the_paper(config):
    """Every row builds. Where the paper prints sizes and says what the row is, the counts round to its digits. Rows
    that the paper leaves open have other digits, or they are not open any more."""
    rows = list(compare_with_paper(CONFIGS / f'{config}.py', read))
    assert not any(row.wrong or (row.unknown and row.same_digits) for row in rows)
    assert sum(row.same_digits is True for row in rows) == ABLATIONS[config]
    printed = yaml.safe_load((CONFIGS / config).with_name('printed.yml').read_text())[config.split('/')[-1]]['Rows']
    assert set(printed) <= {row.name for row in rows}


def test_other_digits_are_noticed(tmp_path):
    """A count that does not round to the printed figure makes the row wrong, unless the paper leaves the row open."""
    (tmp_path / 'a.py').write_text(
        "default_scope = 'mmpretrain'\nrows = dict(one={}, two={})\n"
        "model = dict(type='ImageClassifier', head=dict(type='LinearClsHead', num_classes=1000),"
        "backbone=dict(type='SwinFrame', arch='tiny'))"
    )
    figures = '{params: 28.2, flops: 4.5}', '{params: 28.2, flops: 4.5, unknown: it}'
    (tmp_path / 'printed.yml').write_text('a:\n  Rows:\n    one: {}\n    two: {}\n'.format(*figures))
    one, two = compare_with_paper(tmp_path / 'a.py', read_row)
    assert (one.same_digits, one.wrong, two.same_digits, two.wrong) == (False, 1, False, 0)


class Products(torch.nn.Module):
    """Attention of a map of 3 x 5 tokens in one form, and linear layers in four: of a map whose channels come first in
    memory, a product with a matrix, einsum, and one product per group of channels."""

    TOKENS, DIM, HEADS = 15, 16, 2
    ATTENTION = 2 * TOKENS**2 * DIM
    LINEAR = TOKENS * (3 * DIM**2 + 2 * DIM**2 + DIM**2 // HEADS)

    def __init__(self, form):
        super().__init__()
        self.form = form
        self.qkv = torch.nn.Linear(self.DIM, 3 * self.DIM)
        self.matrix = torch.nn.Parameter(torch.zeros(self.DIM, self.DIM))
        self.groups = torch.nn.Parameter(torch.zeros(self.HEADS, self.DIM // self.HEADS, self.DIM // self.HEADS))
        self.bias = torch.nn.Parameter(torch.zeros(1, 1, 1))

    def forward(self, x):
        q, k, v = self.qkv(x).flatten(1, 2).unflatten(-1, (3, self.HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.form == 'fused':
            out = F.scaled_dot_product_attention(q, k, v)
        elif self.form == 'einsum':
            out = torch.einsum('bhnm,bhmd->bhnd', torch.einsum('bhnd,bhmd->bhnm', q, k), v)
        elif self.form == 'baddbmm':
            out = torch.baddbmm(self.bias, q.flatten(0, 1), k.flatten(0, 1).mT) @ v.flatten(0, 1)
            out = out.unflatten(0, (-1, self.HEADS))
        elif self.form == 'heads':
            out = torch.stack([q[0, i] @ k[0, i].T @ v[0, i] for i in range(self.HEADS)])[None]
        else:
            out = q @ k.mT @ v
        out = torch.einsum('bnc,cd->bnd', out.transpose(1, 2).flatten(2) @ self.matrix, self.matrix)
        return torch.einsum('bngc,gcd->bngd', out.unflatten(-1, (self.HEADS, -1)), self.groups)


@pytest.mark.parametrize('form', ['product', 'fused', 'einsum', 'baddbmm', 'heads'])
@pytest.mark.every(3)
def test_share_of_attention(form):
    """Products of attention are told from linear layers, whichever operator PyTorch takes for them: with and without
    gradients, in inference mode, without numbers, under autocast."""
    for device, trained, mode, autocast in product(
        ('cpu', 'meta'), (True, False), (torch.no_grad, torch.enable_grad, torch.inference_mode), (False, True)
    ):
        model = Products(form).to(device).requires_grad_(trained)
        x = torch.zeros(1, model.DIM, 3, 5, device=device).permute(0, 2, 3, 1)
        with mode(), torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            counts = [count_operations(partial(model, x), share) for share in (1, 0)]
        assert counts == [model.LINEAR + model.ATTENTION, model.LINEAR]


@every_backbone
@pytest.mark.every(4)
def test_backbones_are_counted_alike(case):
    """A backbone has one count on the CPU, with its C++ operators, and without numbers, with gradients and without."""
    counts, x = set(), torch.zeros(1, 3, 64, 96)
    for device, trained in product(('cpu', 'meta'), (True, False)):
        model = case.build(case.tiny).to(device).requires_grad_(trained).train(trained)
        with unpadded(model):
            counts.add(tuple(round(count_operations(partial(model, x.to(device)), share)) for share in (1, 0)))
    assert len(counts) == 1


@pytest.mark.parametrize('trained', [True, False])
def test_layers_of_pytorch(trained):
    """PyTorch's own attention, which without gradients is one operator in evaluation, is counted as in training."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).requires_grad_(trained).eval()
    x = torch.zeros(2, 5, 16)
    linear, attention = 10 * (4 * 16 * 16 + 2 * 16 * 32), 2 * 2 * 5 * 5 * 16
    assert [count_operations(lambda: layer(x), share) for share in (1, 0)] == [linear + attention, linear]


def test_channels_of_images():
    """They are the config's: MMPretrain's EfficientNet has other numbers in its attribute in_channels, and LeNet, which
    takes grey images, has none. The classifier's parameters are those of torchvision's EfficientNet-B0."""
    parameters, operations = count_config(read(CONFIGS / 'msf' / 'efficientnet-b0_in1k.py'))
    assert parameters == 5_288_548 and operations == pytest.approx(0.385e9, rel=0.01)
    lenet = Config(dict(model=dict(backbone=dict(type='LeNet5')), data_preprocessor=dict(mean=[33.46])))
    grey = Config(dict(model=dict(backbone=dict(type='ELSASwin', in_channels=1))))
    assert [complexity.image_channels(cfg) for cfg in (lenet, grey)] == [1, 1]


def rounded_alike(counted, printed):
    """Whether a count, rounded to the digits of a printed figure, is this figure."""
    decimals = len(f'{printed:g}'.partition('.')[2])
    return round(counted, decimals) == round(printed, decimals)


def other_digits(config):
    """The figures of the metafile that the rows of a config do not have, as pairs of a model and a figure."""
    found = compare_with_paper(config, read)
    rows = {row.name.removesuffix(' (backbone)'): row for row in found}  # the whole model is last
    assert not any(row.wrong for row in rows.values())
    for name in rows.keys() & ENTRIES.keys():
        row, printed = rows[name], ENTRIES[name].get('Printed', {})
        unit = 1e9 / printed.get('Operations per Multiply-Add', 1)
        if 'Parameters' in printed and not rounded_alike(row.parameters / 1e6, printed['Parameters'] / 1e6):
            yield name, 'parameters'
        is_counted = 'FLOPs' in printed and row.operations is not None
        if is_counted and not rounded_alike(row.operations / unit, printed['FLOPs'] / 1e9):
            yield name, 'operations'


@pytest.mark.parametrize(
    'config',
    [
        pytest.param(path, id=str(path.relative_to(CONFIGS)), marks=[] if path.stem in FAST else [pytest.mark.slow])
        for path in sorted(PAPERS.values())
    ],
)
def test_every_row_has_the_printed_figures(config):
    """Every model of a metafile is counted, and has the digits that its paper prints, but for those in
    open_figures.py. Those must have others, or they are not open any more."""
    names = {name for name, path in PAPERS.items() if path == config}
    figures = [entry.partition(':') for entries in OPEN.values() for entry in entries.split()]
    expected = {(name, figure or 'operations') for name, _, figure in figures if name in names}
    assert set(other_digits(config)) == expected


def test_open_figures_are_of_models():
    """No name in open_figures.py is misspelt or listed twice."""
    listed = [entry for entries in OPEN.values() for entry in entries.split()]
    assert len(listed) == len(set(listed)) and {entry.partition(':')[0] for entry in listed} <= ENTRIES.keys()


@pytest.mark.parametrize(
    'config',
    [
        'gsa/gsa-r50_in1k',
        'msf/msf-swin-t-g2_in1k',
        'elsa_swin/retinanet_elsa-swin-t_fpn_ms-1x_coco',
        'shunted/shunted-s_segformer_8xb2-160k_ade20k-512x512',
    ],
)
@pytest.mark.every(2)
def test_metafile_has_the_counted_size(config):
    """Metadata in a metafile is what is counted: all parameters, multiply-adds, attention included."""
    folder, name = config.split('/')
    entries = yaml.safe_load((CONFIGS / folder / 'metafile.yml').read_text())['Models']
    (metadata,) = (entry['Metadata'] for entry in entries if entry['Name'] == name)
    counted = count_config(read(PAPERS[name]), ENTRIES[name].get('Input Size'))
    assert counted == pytest.approx((metadata['Parameters'], metadata['FLOPs']), rel=1e-3)


def test_tool_fails_on_a_wrong_figure(tmp_path):
    """The tool says which figure is 5 % higher than the paper's, and exits with 1."""
    source, names = CONFIGS / 'elsa_swin', ['right', 'wrong']
    entries = [yaml.safe_load((source / 'metafile.yml').read_text())['Models'][0] for _ in names]
    for name, entry in zip(names, entries):
        (tmp_path / f'{name}.py').write_text(f"_base_ = '{source / 'elsa-swin-t_in1k.py'}'")
        entry.update(Name=name, Config=f'configs/elsa_swin/{name}.py')
    entries[1]['Printed']['FLOPs'] = int(4.8e9 * 1.05)
    (tmp_path / 'metafile.yml').write_text(yaml.safe_dump(dict(Models=entries)))
    done = run_tool('complexity', *(tmp_path / f'{name}.py' for name in names))
    assert done.returncode == 1 and '1 figures are off' in done.stdout, done.stderr
    right, wrong = (line for line in done.stdout.splitlines() if line.startswith(tuple(names)))
    assert '!' not in right and '-5.' in wrong and '!' in wrong
