import pytest
from matplotlib import pyplot

from tests.tools.in_process import load_tool


@pytest.fixture
def tool(tmp_path, monkeypatch):
    module = load_tool('dev/paper_figures')
    monkeypatch.setattr(module, 'IMAGES', tmp_path)
    monkeypatch.setattr(pyplot, 'close', lambda figure: figures.append(figure))
    figures = module.figures = []
    return module


def test_points_are_the_printed_numbers(tool):
    """Figure 1 of ELSA has table 5, figures 2 and 3 of GSA have table 6, and figure 1 of Shunted has table 2."""
    tool.main()
    elsa, gsa, shunted = tool.figures
    points = {line.get_label(): line.get_xydata().tolist() for line in elsa.axes[1].lines}
    assert points['LSA'] == [[4.5, 81.3]] and points['ELSA'] == [[4.8, 82.7]] and len(points) == 5
    time = {line.get_label(): line.get_xydata().tolist() for line in gsa.axes[5].lines}
    assert time == dict(
        convolution=[[17.2, 80.8], [22.6, 81.2], [39.3, 82.8]], GSA=[[24.7, 83.3], [31.7, 83.9], [57.2, 84.4]]
    )
    sizes = {line.get_label(): line.get_xydata().tolist() for line in shunted.axes[0].lines}
    assert sizes['Shunted'] == [[11.5, 79.8], [22.4, 82.9], [39.6, 84.0], [81.2, 84.6]]
    assert sizes['DeiT'] == [[5.7, 72.2], [22.1, 79.9], [86.6, 81.8]]
    assert sorted(path.stem for path in tool.IMAGES.iterdir()) == ['paper_elsa_swin', 'paper_gsa', 'paper_shunted']
