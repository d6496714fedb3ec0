"""The site that make docs builds, and its notebooks."""

import functools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests import PYTHONPATH, ROOT
from tests.tools.in_process import load_tool

NOTEBOOKS = sorted((ROOT / 'docs' / 'notebooks').glob('*.ipynb'))
PAGES = [
    *sorted(ROOT.glob('*.md')),
    *sorted((ROOT / 'docs').rglob('*.md')),
    *sorted((ROOT / 'configs').rglob('README.md')),
    *sorted((ROOT / 'projects').rglob('*.md')),
]


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """The built site; its notebooks have no results."""
    pytest.importorskip('mkdocs')
    folder = tmp_path_factory.mktemp('site')
    done = subprocess.run(
        [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--site-dir', folder],
        cwd=ROOT,
        env=dict(os.environ, NOTEBOOKS='off', NO_MKDOCS_2_WARNING='1'),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow  # the build: 10 seconds
def test_nothing_is_loaded_from_other_hosts(site):
    """The site works without a network: scripts, styles, fonts and images are its own."""
    loading = re.compile(r'<(?:script|img|iframe)\b[^>]*\bsrc="?(?:https?:)?//|<link\b[^>]*\bhref="?(?:https?:)?//')
    pages = list(site.rglob('*.html'))
    assert len(pages) > 40
    assert not [page for page in pages if loading.search(page.read_text())]
    assert not [sheet for sheet in site.rglob('*.css') if re.search(r'url\(["\']?https?:', sheet.read_text())]


@pytest.mark.slow  # as above
def test_links_of_the_repository_work_on_the_site(site):
    """Configs, pages of configs/ and notebooks are where links from docs/ lead."""
    zoo = (site / 'docs' / 'model_zoo.html').read_text()
    assert '../configs/elsa_swin/elsa-swin-t_in1k.py.txt' in zoo and '../configs/elsa_swin/index.html' in zoo
    assert (site / 'configs' / 'elsa_swin' / 'elsa-swin-t_in1k.py.txt').is_file()
    assert (site / 'configs' / 'elsa_swin' / 'index.html').is_file()
    assert 'docs/notebooks/ten_minutes.html' in (site / 'index.html').read_text()


@pytest.mark.slow  # as above
def test_reference(site):
    """Arguments, formulas, links and examples of docstrings, and no markup of Sphinx, are on the pages."""
    text = ''.join(page.read_text() for page in (site / 'docs' / 'api').glob('*.html'))
    assert 'side of the ELSA neighbourhood, odd' in text and '<math' in text
    assert re.search(r'href="[^"]*#mmattn.backbones.SwinFrame"[^>]*><code>backbones.SwinFrame', text)
    assert not re.search(r':(math|class|func|meth):|\.\. math::', text)


def test_docstrings_become_markdown():
    """Roles, formulas and examples in Sphinx's markup become Markdown. A formula does not end its paragraph."""
    pytest.importorskip('griffe')
    pytest.importorskip('latex2mathml')
    module = load_tool('dev/site/docstrings')
    assert module.markdown('See :class:`Windows`.') == 'See `Windows`.'
    assert '<autoref optional identifier="mmattn.ops.a">`ops.a`</autoref>' in module.markdown(':func:`mmattn.ops.a`')
    assert module.markdown(r'gamma: :math:`\gamma` of').startswith('gamma: <span class="formula-inline"><math')
    block = module.markdown('A sum.\n\n.. math::\n    a +\n    b\n\nText.')
    assert block.startswith('A sum.\n\n<span class="formula-block"><math') and block.endswith('</span>\n\nText.')
    assert module.markdown('>>> 1 + 1\n2\n\nText.') == '```pycon\n>>> 1 + 1\n2\n```\n\nText.'


class Tags(HTMLParser):
    """Counts the tags that show a page's structure, and collects links and anchors."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.counts, self.links, self.anchors = Counter(), [], set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        values = dict(attrs)
        if re.fullmatch(r'h\d|ul|ol|li|pre|table|tr|img|a|blockquote', tag):
            self.counts[tag] += 1
        if tag == 'a' and values.get('href'):
            self.links.append(values['href'])
        if values.get('id'):
            self.anchors.add(values['id'])


@functools.cache
def tags_on_the_site(page: Path) -> Tags:
    markdown = pytest.importorskip('markdown')
    pytest.importorskip('pymdownx')
    return Tags(markdown.markdown(page.read_text(), extensions=['attr_list', 'pymdownx.superfences', 'tables', 'toc']))


@pytest.mark.parametrize('page', PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_markdown_is_the_same_on_a_git_host(page):
    """The site's Markdown and a Git host's see the same lists, tables and code, although they indent differently."""
    commonmark = pytest.importorskip('markdown_it')
    there = commonmark.MarkdownIt('gfm-like', dict(linkify=False)).render(page.read_text())
    assert tags_on_the_site(page).counts == Tags(there).counts


@pytest.mark.parametrize('page', PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    """make docs stops at other links, but takes too long for these tests."""
    for link in tags_on_the_site(page).links:
        path, _, anchor = link.partition('#')
        if '://' in link or link.startswith('mailto:'):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert not anchor or target.suffix != '.md' or anchor in tags_on_the_site(target).anchors, link


@pytest.mark.parametrize('notebook', NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_results(notebook):
    """Results in the repository would go stale, and every run would change the file."""
    cells = json.loads(notebook.read_text())['cells']
    assert not [cell for cell in cells if cell.get('outputs') or cell.get('execution_count')]


@pytest.mark.slow  # one trains for a minute
@pytest.mark.parametrize('notebook', NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook, tmp_path, monkeypatch):
    """From the first cell to the last, in a clone; what they write stays in it. They show pictures."""
    nbclient, nbformat = pytest.importorskip('nbclient'), pytest.importorskip('nbformat')
    pytest.importorskip('ipykernel')
    for name in ('configs', 'projects', 'tools'):
        (tmp_path / name).symlink_to(ROOT / name)
    folder = tmp_path / 'docs' / 'notebooks'
    folder.mkdir(parents=True)
    monkeypatch.setenv('PYTHONPATH', PYTHONPATH)
    content = nbformat.read(notebook, 4)
    nbclient.NotebookClient(content, timeout=None, resources=dict(metadata=dict(path=str(folder)))).execute()
    outputs = [output for cell in content.cells for output in cell.get('outputs', ())]
    assert len([output for output in outputs if 'image/png' in output.get('data', ())]) >= 3
    if notebook.stem == 'ten_minutes':
        text = ''.join(output.get('text', '') for output in outputs)
        assert float(re.search(r'mIoU: ([\d.]+)', text)[1]) > 50  # 300 steps reach 69
