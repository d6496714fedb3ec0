"""Write a released checkpoint in the project's own layout: the backbone's tensors, under "state_dict".

The final norm of a classifier is kept, because a backbone that returns only the last map takes it.

    python tools/convert_weights.py elsa_swin_tiny.pth elsa_swin_tiny_mmattn.pth

Training does not need this, it takes releases as they are. The backbone and its variant are found by the names and
shapes of the tensors. If several have the same tensors, as NAT and DiNAT, the file does not say which it is.
"""

import argparse
import hashlib
import sys
from pathlib import Path

import torch

import mmattn
from mmattn import backbones
from mmattn.backbones.base import Backbone
from mmattn.errors import CheckpointError
from mmattn.weights import check_floats, compare_settings, read_checkpoint
from mmguard.outputs import check_output, save_tensors
from mmguard.runs.running import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('source', help='released checkpoint')
    parser.add_argument('target', type=Path, help='file to write; it must not exist yet')
    parser.add_argument('--trust-checkpoint', action='store_true', help='run the code in the source, if there is any')
    args = parser.parse_args()
    check_output(args.target)
    if args.target.exists():
        sys.exit(f'{args.target} exists already: remove it, or name another file.')
    if not args.target.parent.is_dir():
        sys.exit(f'There is no folder {args.target.parent} to write {args.target.name} to.')
    if args.target.suffix.lower() == '.safetensors':
        sys.exit(f'{args.target} would be a file of torch.save, which has checksums: name it .pth.')
    released, container, settings = read_checkpoint(args.source, trusted=args.trust_checkpoint)
    try:
        check_floats(released)
        (backbone, arch), *others = recognise(released, (settings or {}).get('type'))
        compare_settings(settings, backbone.settings_note)
    except CheckpointError as error:
        raise CheckpointError(f'{args.source}: {error}') from None
    translation = backbone.from_release(released)
    tensors = {key: translation.tensors[key] for key in backbone.state_dict() if key in translation.tensors}
    tensors.update({key: released[key] for key in translation.dropped if key.startswith('norm.')})
    left_out = [key for key in translation.dropped if key not in tensors]

    forms = ' or '.join(
        f'{type(one).__name__}({one.arch_argument}={name!r})' for one, name in [(backbone, arch), *others]
    )
    meta = dict(source=Path(args.source).name, mmattn_version=mmattn.__version__)
    if not others:
        meta.update(backbone=type(backbone).__name__, arch=arch, mmattn={'': backbone.settings_note})
    save_tensors(dict(meta=meta, state_dict=tensors), args.target)
    print(
        f'{args.source} ({container}) is {forms}\n'
        f'taken     {len(tensors)} tensors, {sum(t.numel() for t in tensors.values()) / 1e6:.2f} M values\n'
        f'left out  {", ".join(left_out) or "nothing"}\n'
        f'absent    {", ".join(translation.fresh) or "nothing"}\n'
        f'{args.target}  sha256 {hashlib.sha256(args.target.read_bytes()).hexdigest()}'
    )


def recognise(released: dict[str, torch.Tensor], noted: str | None) -> list[tuple[Backbone, str | int]]:
    """The backbone that a release has all weights of, and the name of its variant.

    Without a note of its class in the file, also those of its bases and subclasses that take the release.

    Raises:
        CheckpointError: if there is none.
    """
    classes = [cls for name in backbones.__all__ if (cls := getattr(backbones, name)).arch_zoo]
    classes.sort(key=lambda cls: cls.__name__ != noted)
    for cls in classes:
        if found := variant(cls, released):
            if cls.__name__ == noted:
                return [found]
            related = [one for one in classes if one is not cls and (issubclass(one, cls) or issubclass(cls, one))]
            return [found, *filter(None, (variant(one, released) for one in related))]
    names = ', '.join(sorted(cls.__name__ for cls in classes))
    raise CheckpointError(f'it is not a release of any backbone here ({names}) with its default arguments')


def variant(cls: type[Backbone], released: dict[str, torch.Tensor]) -> tuple[Backbone, str | int] | None:
    """The first variant of a backbone that takes a release, and its name."""
    for arch in cls.arch_zoo:
        with torch.device('meta'):
            backbone = cls(**{cls.arch_argument: arch})
        try:
            backbone.load_state_dict(dict(released), strict=True)
        except CheckpointError:
            continue
        return backbone, arch
    return None


if __name__ == '__main__':
    run_tool(main)
