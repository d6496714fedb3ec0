"""tools/benchmark.py as a user calls it, on images so small that the figures mean nothing."""

import importlib
import json
import re
import sys
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import MMLogger

from mmguard.errors import InputError
from tests import ROOT

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / 'tools')
    benchmark_tool = importlib.import_module('benchmark')


@pytest.fixture(autouse=True)
def own_logger(monkeypatch):
    """The tool sets the level of MMEngine's logger."""
    monkeypatch.setattr(MMLogger, '_instance_dict', OrderedDict())


@pytest.fixture
def benchmark(monkeypatch):
    """Run the tool in this process. Those that it starts to measure memory find it by its name."""

    def run(*arguments):
        monkeypatch.setattr(sys, 'argv', ['benchmark.py', *arguments])
        benchmark_tool.main()

    monkeypatch.syspath_prepend(ROOT / 'tools')
    threads = torch.get_num_threads()
    yield run
    torch.set_num_threads(threads)


def config(folder, name, arch):
    path = folder / f'{name}.py'
    path.write_text(f'model = dict(backbone=dict(type="{name}", arch={arch}, out_indices=(0, )))')
    return path


@pytest.mark.slow
def test_table_and_json(benchmark, tmp_path):
    """A model on the reference of its operator beside itself: a row per model and size, ratios to the baseline, growth,
    and the operators that take most time."""
    model = config(tmp_path, 'ELSASwin', dict(embed_dim=8, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1), group_width=4))
    benchmark(
        f'{model}:reference',
        '--baseline',
        str(model),
        '--sizes',
        '64x64',
        '128x128',
        '--steps',
        'training',
        '--runs',
        '1',
        '--profile',
        '--out',
        str(tmp_path),
    )
    rows = json.loads((tmp_path / 'benchmark.json').read_text())['rows']
    assert len(rows) == 2 * 2
    fast, plain = (row for row in rows if row['size'] == '128x128')
    assert plain['images_per_second'] == 1 / plain['seconds']
    for row in rows:
        shares = [share for _, _, share in row['profile']]
        assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 1
        written = (tmp_path / 'profile.md').read_text()
        assert f'| `{row["profile"][0][0]}` |' in written
        assert 0 < row['least_time']['products'] <= row['least_time']['operators']
        assert f'{row["least_time"]["operators"] * 1e3:.1f} ms for all operators' in written
    assert plain['memory'] > fast['memory'] > 0 and plain['seconds'] > 0
    table = (tmp_path / 'benchmark.md').read_text()
    (line,) = (line for line in table.splitlines() if f'{model}:reference | eager | 128x128 |' in line)
    assert f'| {plain["seconds"] / fast["seconds"]:.2f} |' in line and 'n^' in line


@pytest.fixture
def simulated(monkeypatch):
    """measure_models() measures nothing. Returns its arguments, and the names of the models that it ran."""
    calls = []
    monkeypatch.setattr(benchmark_tool, 'build', lambda name, *_: name)
    monkeypatch.setattr(benchmark_tool, 'peak_memory', lambda name, model, runtime, step, sizes, args: [1] * len(sizes))
    monkeypatch.setattr(benchmark_tool, 'operations', lambda *_: 1)
    monkeypatch.setattr(benchmark_tool, 'timed', lambda name, *_: calls.append(name) or (20 if name == 'slow' else 0.5))
    sizes = [(64, 64), (96, 96)]
    return SimpleNamespace(
        steps=['inference'], sizes=sizes, device='cpu', batch=1, runs=3, profile=False, left_out=[]
    ), calls


def test_only_what_is_missing_is_measured(simulated, tmp_path):
    """A run that was stopped goes on: rows of the same settings stay. A step of 10 s or more warms up and runs once."""
    args, calls = simulated
    args.batch = 8
    row = dict(model='baseline', baseline='baseline', runtime='eager', step='inference', size='64x64')
    (tmp_path / 'benchmark.json').write_text(json.dumps(dict(machine='this', rows=[row])))
    with pytest.raises(InputError, match='other settings'):
        benchmark_tool.measured(tmp_path / 'benchmark.json', 'that')
    rows = benchmark_tool.measured(tmp_path / 'benchmark.json', 'this')
    found = sum(benchmark_tool.measure_models(['baseline', 'slow'], 'eager', args, rows), [])
    assert [(row['model'], row['size']) for row in found] == [
        ('slow', '64x64'),
        ('baseline', '96x96'),
        ('slow', '96x96'),
    ]
    assert (
        [row['seconds'] for row in found] == [20, 0.5, 20] and calls.count('slow') == 4 and calls.count('baseline') == 4
    )
    assert [row['images_per_second'] for row in found] == [0.4, 16, 0.4]


@pytest.mark.parametrize('broken', ['baseline', 'ours'])
def test_a_model_that_torch_cannot_compile_is_left_out(simulated, monkeypatch, capsys, broken):
    """The others are measured, without a ratio if it is the baseline. One of ours is remembered, so that the tool
    fails."""

    def peak_memory(name, model, runtime, step, sizes, args):
        if name == broken:
            raise benchmark_tool.CannotCompile('C++ compile error')
        return [1] * len(sizes)

    monkeypatch.setattr(benchmark_tool, 'peak_memory', peak_memory)
    args, _ = simulated
    rows = sum(benchmark_tool.measure_models(['baseline', 'ours'], 'compile', args, []), [])
    (other,) = {'baseline', 'ours'} - {broken}
    assert {row['model'] for row in rows} == {other} and args.left_out == ['ours'] * (broken == 'ours')
    assert (
        f'{broken:24s} compile  inference  is left out: torch cannot compile it (C++ compile' in capsys.readouterr().out
    )
    assert f'| 500 ms | {"-" if broken == "baseline" else "1.00"} |' in benchmark_tool.table(rows)


def test_difference_of_a_graph(monkeypatch):
    """A graph that computes something else than its model shows; of a detector, that it finds other objects."""
    model, x = torch.nn.Conv2d(3, 4, 1), torch.randn(1, 3, 8, 8)
    monkeypatch.setattr(benchmark_tool, 'deployed', lambda *_: model)
    assert benchmark_tool.difference('model', lambda x: (model(x),), x, None) == 0
    assert benchmark_tool.difference('model', lambda x: (model(x) * 1.5,), x, None) == pytest.approx(0.5)
    model.roi_head, found = torch.nn.Identity(), (torch.rand(4, 4), torch.arange(4), torch.rand(4))
    monkeypatch.setattr('mmattn_deploy.detectors.detect', lambda *_: found)
    for kept in (4, 3, 0):
        graph = lambda _, kept=kept: tuple(part[:kept] for part in found)
        assert benchmark_tool.difference('model', graph, x, None) == 1 - kept / 4


@pytest.mark.slow
@pytest.mark.usefixtures('torch_compiles')
def test_compiled(benchmark, tmp_path):
    """--runtime measures both steps of a model and its baseline in eager mode and compiled, and inference as ONNX."""
    model = config(tmp_path, 'MSFSwin', dict(embed_dim=8, depths=(1, 1), num_heads=(1, 1)))
    baseline = config(tmp_path, 'MSFViT', dict(embed_dim=8, depth=2, num_heads=1))
    pytest.importorskip('onnxruntime')
    runtimes = ('--runtime', 'eager', 'compile', 'onnxruntime')
    benchmark(
        str(model), '--baseline', str(baseline), '--sizes', '64x96', '--runs', '1', *runtimes, '--out', str(tmp_path)
    )
    rows = json.loads((tmp_path / 'benchmark.json').read_text())['rows']
    assert [row['runtime'] for row in rows] == ['eager'] * 4 + ['compile'] * 4 + ['onnxruntime'] * 2
    assert all(row['seconds'] > 0 and row['operations'] > 0 for row in rows)
    assert rows[-1]['step'] == 'inference'


@pytest.mark.parametrize(
    'config, baseline, classes',
    [
        ('elsa-swin-toy_upernet', 'swin-t', 150),
        pytest.param('mask-rcnn_elsa-swin-toy_fpn', 'r50', 81, marks=pytest.mark.slow),
    ],
)
def test_whole_models(config, baseline, classes):
    """A detector and a segmentor, as configured and on the backbone of a baseline, score classes and train all
    weights."""
    args = SimpleNamespace(
        row=None, device='cpu', dtype='float32', heads=str(ROOT / 'projects/lab/configs/toy' / f'{config}.py')
    )
    for name in (args.heads, baseline):
        model, x = benchmark_tool.eager(name, args), torch.randn(2, 3, 64, 96)
        benchmark_tool.run(model, x, 'training', args)
        assert all(weight.grad.isfinite().all() for weight in model.parameters())
        model.eval()
        scores = model(x)
        scores = scores[0][0] if isinstance(scores, tuple) else scores
        assert scores.shape[1] == classes


@pytest.mark.parametrize('name', ['r50', 'timm-r50', 'gsa-r50'])
def test_norms_compute_statistics(name):
    """A training step of baselines and ours does the same work: batch norms are in training mode."""
    options = SimpleNamespace(device='cpu', row=None, heads=None, dtype='float32')
    model = benchmark_tool.eager(name, options)
    for step in benchmark_tool.STEPS:
        benchmark_tool.run(model, torch.zeros(2, 3, 64, 64), step, options)
    assert all(m.training for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))


@pytest.mark.parametrize(
    'heads, name',
    [('elsa-swin-t', 'r50'), (f'{ROOT}/projects/lab/configs/toy/elsa-swin-toy_upernet.py', 'vit-s')],
    ids=['classifier', 'ViT'],
)
def test_what_cannot_be_whole(heads, name):
    """A classifier has no heads to exchange, and a ViT has maps of one stride."""
    with pytest.raises(ValueError, match='the config of a detector or segmentor|maps of strides 4, 8, 16 and 32'):
        benchmark_tool.eager(name, SimpleNamespace(row=None, device='cpu', heads=heads))


def test_names_of_configs():
    """A name stands for a config in configs/*/. A baseline's name stands for the baseline, not for a config like it."""
    named = benchmark_tool.backbone_config
    assert (
        named('elsa-swin-t')
        == named('elsa-swin-t_in1k')
        == named(f'{benchmark_tool.CONFIGS}/elsa_swin/elsa-swin-t_in1k.py')
    )
    assert named('swin-t')['type'] == 'mmdet.SwinTransformer' and named('swin-t_in1k')['type'] == 'mmattn.MSFSwin'


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['swin-t'], '--baseline is needed for swin-t'),
        (['elsa-swin-t:fast', '--baseline', 'swin-t'], "backend must be None or one of reference, .* not 'fast'"),
        (['elsa-swin-t', '--runtime', 'openvino', '--dtype', 'float16'], 'for inference in float32 on the CPU'),
    ],
)
def test_bad_arguments_are_named(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, 'argv', ['benchmark.py', *arguments])
    with pytest.raises(SystemExit, match='2'):
        benchmark_tool.main()
    assert re.search(message, capsys.readouterr().err)


def test_units_of_the_table():
    """Times are in ms, memory in GiB, operations in 10^9, and growth is a power of the number of pixels."""
    rows = []
    for model, factor in (('baseline', 1), ('ours', 2)):
        for side in (100, 200):
            row = dict(model=model, baseline='baseline', runtime='eager', step='inference', size=f'{side}x{side}')
            row |= dict(pixels=side**2, seconds=factor * side**2 / 1e4, least_seconds=0.002 * factor)
            row |= dict(images_per_second=4, memory=factor * 2**30 * 1.5 * (side / 100) ** 2)
            row |= dict(operations=factor * 3e9 * side / 100)
            rows.append(row)
    *_, last = benchmark_tool.table(rows).splitlines()
    cells = [cell.strip() for cell in last.strip('|').split('|')]
    assert cells[:4] == ['inference', 'ours', 'eager', '200x200']
    assert cells[4:8] == ['8000 ms', '2.00', '4.00 ms', '2.00']
    assert cells[8:] == ['4', '12.00 GiB', '2.00', '12.0 G', '2.00', 'n^1.00, n^1.00, n^0.50']
