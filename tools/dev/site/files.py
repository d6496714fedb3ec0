"""Which files the site has: the repository's Markdown, notebooks with their results, and configs as text.

A hook of MkDocs, see mkdocs.yml. Pages keep their places in the repository, so that one link works on the site and on a
Git host. Notebooks are executed, and kept in ``work_dirs/site_notebooks`` until their text changes.
"""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbconvert.filters import strip_ansi

ROOT = Path(__file__).resolve().parents[3]
PATTERNS = (
    *('*.md', 'LICENSE', 'docs/**/*', 'configs/**/README.md', 'configs/**/*.py', 'tests/**/*.md'),
    *('projects/**/*.md', 'projects/*/configs/**/*.py', 'projects/*/docs/images/*'),
)
KEPT = ROOT / 'work_dirs' / 'site_notebooks'


class NotebookFile(File):
    """A page whose source has another suffix than Markdown."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of ``PATTERNS``, and those of the theme."""
    found = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern) if path.is_file())
    with ThreadPoolExecutor() as pool:  # Each notebook runs in a process of its own.
        notebooks = [path for path in paths if path.suffix == '.ipynb']
        contents = dict(zip(notebooks, pool.map(read_notebook, notebooks)))
    for path in paths:
        uri = path.relative_to(ROOT).as_posix()
        if path in contents:
            found += notebook(contents[path], uri, config)
        else:
            found.append(File(uri, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=place(uri)))
    return Files(found)


def place(uri: str) -> str | None:
    """Where a file lies on the site; None: where MkDocs puts it."""
    if uri == 'docs/index.md':
        return 'index.html'
    if uri == 'README.md':
        return 'overview.html'
    return f'{uri}.txt' if uri == 'LICENSE' or uri.endswith('.py') else None  # browsers show .txt


def notebook(content: nbformat.NotebookNode, uri: str, config: MkDocsConfig) -> Iterator[File]:
    """The page of a notebook, and its pictures."""
    for cell in content.cells:  # Logs and warnings are no results.
        cell.outputs = [output for output in cell.get('outputs', ()) if output.get('name') != 'stderr']
    text, resources = MarkdownExporter().from_notebook_node(content, dict(output_files_dir=f'{Path(uri).stem}_files'))
    yield NotebookFile.generated(config, uri, content=strip_ansi(text))
    for name, picture in resources['outputs'].items():
        yield File.generated(config, f'{uri.rpartition("/")[0]}/{name}', content=picture)


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """A notebook with its results; without, if the environment variable NOTEBOOKS is "off"."""
    content = nbformat.read(path, 4)
    if os.environ.get('NOTEBOOKS') == 'off':
        return content
    kept = KEPT / f'{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.ipynb'
    if kept.is_file():
        return nbformat.read(kept, 4)
    print(f'{path.name} is executed: minutes', flush=True)
    NotebookClient(content, timeout=None, resources=dict(metadata=dict(path=str(path.parent)))).execute()
    KEPT.mkdir(parents=True, exist_ok=True)
    for old in KEPT.glob(f'{path.stem}-*.ipynb'):
        old.unlink()
    nbformat.write(content, kept)
    return content
