"""tools/benchmark.py as a user calls it, on pictures so small that no figure means anything."""

import json
import subprocess
import sys

import pytest

from tests import ROOT


def benchmark(*arguments):
    return subprocess.run(
        [sys.executable, ROOT / 'tools' / 'benchmark.py', *arguments], cwd=ROOT, capture_output=True, text=True
    )


def config(folder, name, arch):
    path = folder / f'{name}.py'
    path.write_text(f'model = dict(backbone=dict(type="{name}", arch={arch}, out_indices=(0, )))')
    return path


def test_table_json_and_plot(tmp_path):
    """A model on the reference of its operator beside itself: a row each per size, ratios to the peer, growth."""
    model = config(tmp_path, 'ELSASwin', dict(embed_dim=8, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1), group_width=4))
    done = benchmark(
        f'{model}:reference',
        '--peer',
        str(model),
        '--sizes',
        '64x64',
        '128x128',
        '--steps',
        'training',
        '--runs',
        '1',
        '--out',
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / 'benchmark.json').read_text())['rows']
    assert len(rows) == 2 * 2 and (tmp_path / 'benchmark.png').is_file()
    fast, plain = (row for row in rows if row['size'] == '128x128')
    assert plain['memory'] > fast['memory'] > 0 and plain['seconds'] > 0
    table = (tmp_path / 'benchmark.md').read_text()
    (line,) = (line for line in table.splitlines() if f'{model}:reference | 128x128 |' in line)
    assert f'| {plain["seconds"] / fast["seconds"]:.2f} |' in line and 'n^' in line


@pytest.mark.slow
@pytest.mark.usefixtures('torch_compiles')
def test_compiled(tmp_path):
    """--compile, with both steps and a peer."""
    model = config(tmp_path, 'MSFSwin', dict(embed_dim=8, depths=(1, 1), num_heads=(1, 1)))
    peer = config(tmp_path, 'MSFViT', dict(embed_dim=8, depth=2, num_heads=1))
    done = benchmark(
        str(model), '--peer', str(peer), '--sizes', '64x96', '--runs', '1', '--compile', '--out', str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / 'benchmark.json').read_text())
    assert 'compiled' in report['machine'] and len(report['rows']) == 2 * 2
    assert all(row['seconds'] > 0 and row['operations'] > 0 for row in report['rows'])


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['swin-xxl', '--peer', 'swin-t'], 'swin-xxl is neither a config nor one of'),
        (['swin-t'], '--peer is needed for swin-t'),
        (['shunted-s:reference', '--peer', 'pvtv2-b2'], 'no operator with a plain reference'),
        (['elsa-swin-t', '--sizes', '512'], 'a size is HEIGHTxWIDTH'),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    done = benchmark(*arguments)
    assert done.returncode == 2 and message in done.stderr
