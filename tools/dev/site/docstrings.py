"""Docstrings have Sphinx's markup: what the site needs of it, as Markdown. An extension of Griffe, see mkdocs.yml."""

import re

import griffe
from latex2mathml.converter import convert

#: a formula of its own: its indentation, and the indented lines that follow
BLOCK = re.compile(r'^( *)\.\. math::\n((?:\1    .*\n?|\n)+)', re.MULTILINE)
#: a session of the interpreter, up to an empty line
SESSION = re.compile(r'^( *)>>> (?:.+\n?)+', re.MULTILINE)
ROLE = re.compile(r':(\w+):`~?([^`]+)`')


class Markdown(griffe.Extension):
    """Roles become code with a link where the site has the object, formulas become MathML."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """A docstring in Sphinx's markup, as Markdown."""
    text = BLOCK.sub(lambda found: f'{found[1]}{formula(found[2], "block")}\n\n', text)
    text = SESSION.sub(lambda found: f'{found[1]}```pycon\n{found[0].rstrip()}\n{found[1]}```\n', text)
    return ROLE.sub(role, text)


def role(found: re.Match) -> str:
    kind, name = found.groups()
    if kind == 'math':
        return formula(name, 'inline')
    link = f'<autoref optional identifier="{name}">`{name.removeprefix("mmattn.")}`</autoref>'
    return link if name.startswith('mmattn.') else f'`{name}`'


def formula(latex: str, display: str) -> str:
    # In a span: Python-Markdown takes a <math> at the beginning of a line for a paragraph of its own.
    return f'<span class="formula-{display}">{convert(" ".join(latex.split()), display=display)}</span>'
