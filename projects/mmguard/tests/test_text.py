"""Names in figures of Matplotlib."""

import pytest
from matplotlib.figure import Figure

from mmguard.text import in_figure


@pytest.mark.parametrize(
    'name, shown', [(r'\$a', r'\$a'), ('_run', ' _run'), ('w\udcff', r'w\udcff'), ('$\\frac{', '$\\frac{')]
)
def test_names_in_a_figure(tmp_path, name, shown):
    """They are shown as they are: no formula, also where a formula would end in an error, and no bytes."""
    figure = Figure()
    axis = figure.add_subplot()
    axis.plot([0], label=in_figure(f'{name} {name}'))
    axis.set_title(in_figure(name))
    assert [text.get_text().replace(r'\$', '$') for text in axis.legend().get_texts()] == [f'{shown} {shown.strip()}']
    figure.savefig(tmp_path / 'a.png')
