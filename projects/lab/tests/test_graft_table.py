"""graft_table.py, with a small model of random weights and images of noise."""

import json
import sys

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import MODELS

from mmguard.errors import InputError
from tests.tools.in_process import load_tool

tool = load_tool('graft_table')
ARCH = dict(embed_dim=24, depth=4, num_heads=2, version=2, registers=0, swiglu=0)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run the tool for a small model; gives what it printed."""
    monkeypatch.setattr(tool, 'SOURCE', dict(type='DINOViT', arch=ARCH, img_size=28))
    for name, value in dict(BLOCKS=4, SIDES=(28, 42), EVERY=4, TIMED=[(28, 28), (14, 42)]).items():
        monkeypatch.setattr(tool, name, value)
    torch.manual_seed(0)
    weights = MODELS.build(tool.SOURCE).state_dict()
    weights = {name: value + 0.3 * torch.randn_like(value) for name, value in weights.items()}
    torch.save(dict(state_dict=weights), tmp_path / 'plain.pth')
    rng = np.random.default_rng(0)
    for part, high in dict(train=256, trainannot=12, test=256, testannot=12).items():
        (tmp_path / part).mkdir()
        for i in range(8):
            shape = (36, 48) if part.endswith('annot') else (36, 48, 3)
            cv2.imwrite(str(tmp_path / part / f'{i}.png'), rng.integers(0, high, shape, dtype=np.uint8))

    def run(*arguments):
        monkeypatch.setattr(sys, 'argv', ['graft_table.py', *map(str, arguments), '--out', str(tmp_path / 'out')])
        tool.main()
        return capsys.readouterr().out

    return run


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_scores(call, tmp_path):
    """Exact starts have the score of the plain model, and are not grafted; grafts come nearer to its maps, also if no
    block takes the class token. A second call computes nothing again."""
    arguments = 'score', tmp_path / 'plain.pth', tmp_path, '--steps', 0, 20, '--whole', 2, '--attention'
    names = 'ghost summand, 3 x 3', '7 x 7 neighbours'
    printed = call(*arguments, *names)
    plain, *rows = read(tmp_path / 'out' / 'score.jsonl')
    assert plain['images'] == 2 and len(plain['ious']) == 11 and len(rows) == 3 + 3 * 3
    found = {(row['attention'], row['blocks'], row['steps'], row['whole']): row for row in rows}
    for share in tool.SHARES:
        exact = found[names[0], share, 0, 0]
        assert exact['miou'] == plain['miou'] and exact['differs'] < 1e-3
        start, grafted, whole = (found[(names[1], share, *steps)]['differs'] for steps in ((0, 0), (20, 0), (20, 2)))
        assert grafted < start and whole != grafted
    cells = printed.splitlines()[-3].split(' | ')
    assert cells[0] == f'| {names[1]}' and cells[3].split(', ')[2] == f'{found[(names[1], "all", 20, 0)]["miou"]:.2f}'
    before = [file.stat().st_mtime_ns for file in sorted((tmp_path / 'out').iterdir())]
    assert printed.endswith(call(*arguments, *names))
    assert before == [file.stat().st_mtime_ns for file in sorted((tmp_path / 'out').iterdir())]
    cv2.imwrite(str(tmp_path / 'testannot' / '3.png'), np.full((36, 48), 3, np.uint8))
    with pytest.raises(InputError, match='of another checkpoint or other images'):
        call(*arguments, *names)


def test_places():
    """A quarter is every fourth block, and half every second: blocks of a smaller share are among those of a larger
    one. The class token goes only where no block takes it."""
    near, mean_shift = (tool.ATTENTION[name] for name in ('7 x 7 neighbours', 'mean shift'))
    found = {share: [i for i, x in enumerate(tool.placed(near, share)['attention']) if x] for share in tool.SHARES}
    assert found == dict(quarter=[3, 7, 11], half=[1, 3, 5, 7, 9, 11], all=[*range(12)])
    without = [(x, share) for x in (near, mean_shift) for share in found if 'class_token' in tool.placed(x, share)]
    assert without == [(near, 'all')]


def test_times(call, tmp_path):
    """All attentions are timed at both sizes beside plain attention, in one call."""
    printed = call('time', '--runs', 2)
    rows = read(tmp_path / 'out' / 'time.jsonl')
    assert len(rows) == 2 * (1 + len(tool.ATTENTION)) and all(len(row['seconds']) == 2 for row in rows)
    assert '| plain |' in printed and '| ghost head |' in printed
    assert printed.endswith(call('time', '--runs', 2))
