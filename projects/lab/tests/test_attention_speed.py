import sys

import torch

from tests.tools.in_process import load_tool

attention_speed = load_tool('attention_speed')


def test_ratios(monkeypatch, capsys):
    """A ratio is the time of neighbourhood attention divided by that of window attention, which is in milliseconds."""
    times = iter([[0.01, 0.02], [0.03, 0.09]] * 7)
    monkeypatch.setattr(attention_speed, 'medians', lambda steps, runs: next(times))
    monkeypatch.setattr(attention_speed, 'SIZES', ((64, 64),))
    monkeypatch.setattr(sys, 'argv', ['attention_speed.py', '--threads', str(torch.get_num_threads())])
    attention_speed.main()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 7 and all(row.endswith('| 10.0 | 2.00 | 3.00 |') for row in rows)
    assert rows[0].startswith('| 64 x 64 | 4 | 1 |') and rows[-1].startswith('| 64 x 64 | 32 | 1 |')
