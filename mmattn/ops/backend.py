from collections.abc import Callable, Mapping


def named_backend(backends: Mapping[str, Callable], name: str) -> Callable:
    """The function of a backend.

    Raises:
        ValueError: if there is none of that name; the message lists the names.
    """
    if name not in backends:
        raise ValueError(f'backend must be None or one of {", ".join(backends)}, not {name!r}')
    return backends[name]
