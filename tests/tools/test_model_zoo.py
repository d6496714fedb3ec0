import sys

import pytest

from tests import ROOT
from tests.tools.in_process import load_tool


@pytest.fixture(scope='module')
def tool():
    return load_tool('dev/model_zoo')


@pytest.fixture(scope='module')
def page(tool):
    """What the tool writes."""
    return tool.model_zoo()


def test_model_zoo_is_up_to_date(tool, page):
    """docs/model_zoo.md is what the metafiles say."""
    assert tool.PAGE.read_text() == page


def test_check_notices_a_stale_page(tool, page, tmp_path, monkeypatch):
    """--check writes nothing and exits with 1 if a figure differs."""
    stale, file = page.replace('82.7 top 1', '82.8 top 1'), tmp_path / 'model_zoo.md'
    file.write_text(stale)
    monkeypatch.setattr(tool, 'model_zoo', lambda: page)
    monkeypatch.setattr(tool, 'PAGE', file)
    monkeypatch.setattr(sys, 'argv', ['model_zoo.py', '--check'])
    with pytest.raises(SystemExit, match='model_zoo.md is stale'):
        tool.main()
    assert file.read_text() == stale


def test_a_released_checkpoint_has_its_own_score(page):
    """ELSA's Mask R-CNN has 45.6 box AP in the paper, and 45.7 with the weights that its authors released."""
    (line,) = (line for line in page.splitlines() if line.startswith('| [mask-rcnn_elsa-swin-t_fpn_ms-1x'))
    assert '| 45.6 box AP, 41.1 mask AP | [45.7 box AP, 41.1 mask AP](https://github.com/damo-cv/ELSA)' in line


def test_ablations_are_listed(tool):
    """All printed figures of a row, under the columns that any row of the table has."""
    lines = list(tool.ablations(ROOT / 'configs' / 'gsa' / 'ablations'))
    assert '| row | parameters, millions | operations, billions¹ | top-1 | top-5 | ms per image, TPUv3 |' in lines
    assert (
        '| `axial-content` | 18.1 | 7.3 | 77.5 | 93.6 | 32.5 |' in lines and '| `row` |  |  | 70.2 | 89.4 |  |' in lines
    )


def test_tables_of_detectors(tool):
    """A table of a paper has all accuracies that it prints of a model, beside those of the models that it compares
    with, in the order of the accuracies. A result that two papers print differently stands in the table of each."""
    tables = dict(part.split(':\n', 1) for part in '\n'.join(tool.printed_tables()).split('\nTable '))
    one, pvt = (
        next(line for line in tables['4 of Shunted'].splitlines() if name in line)
        for name in ('shunted-s_fpn_1x', 'pvtv2-b2_fpn_1x')
    )
    assert one.endswith('| 45.4 | 65.9 | 49.2 | 28.7 | 49.3 | 60.0 |')
    assert tables['4 of Shunted'].index(pvt) < tables['4 of Shunted'].index(one)
    assert '| box AP_S | box AP_M | box AP_L |' in tables['4 of Shunted']
    assert '| swin-t_upernet_8xb2-160k_ade20k-512x512 | 59.9 M | 944 G | 44.5 | 45.8 |' in tables['5 of Shunted']
    assert '| swin-t_upernet_8xb2-160k_ade20k-512x512 | 59.9 M | 944 G | 45.8 |' in tables['8 of ELSA']
    assert len(tables) == 8


def test_a_training_that_crashed_is_shown(tool):
    """What a paper prints instead of an accuracy stands in its place."""
    lines = list(tool.ablations(ROOT / 'configs' / 'elsa_swin' / 'ablations'))
    cells = {line.split('`')[1]: line.split(' | ')[3] for line in lines if line.startswith('| `')}
    assert (cells['net7-identity'], cells['lsa-c-heads'], cells['net7']) == ('crash', 'out of memory', '81.8')


def test_comparison_joins_papers_and_benchmarks(tool):
    """A row has costs and the papers' accuracies. Rows of the six benchmarked backbones also have a time."""
    rows = tool.comparison().splitlines()
    benchmarks = (ROOT / 'docs' / 'benchmarks.md').read_text().splitlines()
    measured = next(line for line in benchmarks if line.startswith("| ELSA-Swin-T | MMDetection's Swin-T |"))
    ratio = measured.split('|')[4].split()[0]
    assert f'| ELSA-Swin | t | 29.1 M | 4.8 G | 82.7 | 45.6 | {ratio} x Swin-T |' in rows
    assert "| Swin, in ELSA's paper | t | 28.3 M | 4.5 G | 81.3 | 43.7 |  |" in rows
    assert "| Swin, in MSF's paper | t | 28.3 M | 4.5 G | 81.7 |  |  |" in rows  # detectors are of ELSA's paper
    assert sum(' x ' in row for row in rows if row.startswith('|')) == 6
    assert not [row for row in rows if '384' in row or 'g2' in row]
