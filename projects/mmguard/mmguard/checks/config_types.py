"""The classes and functions that the types in a config name."""

from collections.abc import Callable, Iterator

from mmengine.registry import MODELS, Registry

#: keys of every dict that a registry builds
NODE_KEYS = ('type', '_scope_')


def find_type(node: dict, registry: Registry = MODELS, default: str | None = None) -> Callable | None:
    """The class or function that the type of a dict names in the current scope; None if it is not registered."""
    kind = node.get('type', default)
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    with registry.switch_scope_and_registry(node.get('_scope_')) as registry:
        try:
            found = registry.get(kind)
        except (RuntimeError, TypeError):  # from MMEngine, for a name of which part is found or that begins with a dot
            return None
    return found if callable(found) else None


def listed(node: object, place: str) -> Iterator[tuple[str, object]]:
    """The entries of lists within lists, with their places in a config; a node other than a list is one entry."""
    if isinstance(node, (list, tuple)):
        for index, part in enumerate(node):
            yield from listed(part, f'{place}[{index}]')
    elif node is not None:
        yield place, node


def nested(
    node: object, place: str, follow: Callable[[dict, str], bool] = lambda *_: True
) -> Iterator[tuple[str, dict]]:
    """A dict, or those in lists, and the dicts below those of its keys that are to be followed, with their places."""
    for where, part in listed(node, place):
        if isinstance(part, dict):
            yield where, part
            for key, value in part.items():
                if follow(part, key):
                    yield from nested(value, f'{where}.{key}', follow)


def places_of(value: object, node: object, place: str) -> Iterator[str]:
    """Where a text, list or dict stands in a node of a config. A dict may have more keys there."""
    if value and isinstance(value, (str, list, tuple, dict)):
        both = isinstance(node, dict) and isinstance(value, dict)
        if node == value or both and all(each in node.items() for each in value.items()):
            yield place
        keys = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, (list, tuple)) else ()
        for key, part in keys:
            yield from places_of(value, part, f'{place}.{key}')


def bases(node: dict, registry: Registry = MODELS) -> list[str]:
    """The names of the class of a module's config and of its bases."""
    return [base.__name__ for base in getattr(find_type(node, registry), '__mro__', ())]


def definer(cls: object, method: str) -> str | None:
    """The name of the class that defines a method: a class or the nearest of its bases. None if none does."""
    return next((base.__name__ for base in getattr(cls, '__mro__', ()) if method in vars(base)), None)


def is_of(node: dict, *modules: str, registry: Registry = MODELS) -> bool:
    """Whether what the type of a config's dict stands for is defined in one of the packages."""
    return getattr(find_type(node, registry), '__module__', '').startswith(modules)


def loads_strictly(module: object) -> bool:
    """Whether a module, or its class, refuses weights that do not fit, and notes its settings in checkpoints, as the
    ``StrictModule`` of ``weights`` does: it has ``settings_note``."""
    return hasattr(module if isinstance(module, type) else type(module), 'settings_note')


def type_name(kind: object) -> str:
    """The name of a type in a config, a text or a class, without its package: "mmdet.CocoMetric" -> "CocoMetric"."""
    return kind.__name__ if isinstance(kind, type) else str(kind).rpartition('.')[2]
