"""A config for a folder of images and annotations, with the lines that docs/own_data.md writes by hand."""

from .config import HEADS, start

__all__ = ['HEADS', 'start']
