"""Licenses of weights: that which is given, or that of the weights that the training started from."""

import re
from collections.abc import Iterable

from ..errors import InputError, warn


def licenses_of(names: Iterable[str | None]) -> dict[str, str | None]:
    """Names of weights -> their license; None if timm does not know it."""
    found = {}
    for name in map(str, filter(None, names)):
        known = None
        if name.startswith('timm:'):
            from timm.models import get_pretrained_cfg  # timm takes seconds

            known = get_pretrained_cfg(name.removeprefix('timm:'))
        found[name] = known and known.license
    return found


def chosen_license(license: str | None, starts: dict[str, str | None]) -> str:
    """The license of weights: what is given, or that of all weights that the training started from.

    Raises:
        InputError: if neither is known.
    """
    known = {terms for terms in starts.values() if terms}
    if license is None:
        if len(known) == 1 and all(starts.values()):
            return known.pop().lower()
        shown = ', '.join(f'{start} has {terms or "one that is not known here"}' for start, terms in starts.items())
        why = shown or 'the training started from no weights that are named, so the choice is yours'
        raise InputError(f'give the license of the weights, such as apache-2.0: {why}')
    if not re.fullmatch(r'[\w.+-]+', license):
        raise InputError(f'license must be a name as the Hugging Face Hub has it, such as apache-2.0, not {license!r}')
    for start, terms in starts.items():
        if terms and terms.lower() != license.lower():
            warn(f'The license is {license}, and that of {start} is {terms}: see whether its terms allow this.')
    return license.lower()
