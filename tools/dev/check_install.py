"""See that an installed mmattn works: build each backbone, and run it on an image.

    python tools/dev/check_install.py [--library]

It ends with an error if MMCV was imported, or a package that needs it.
"""

import argparse
import sys

import timm
import torch

import mmattn.timm
from mmattn import backbones
from mmattn.ops.library import HAS_LIBRARY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--library', action='store_true', help='end with an error without the C++ operators')
    args = parser.parse_args()
    if args.library and not HAS_LIBRARY:
        sys.exit('The library with the C++ operators is missing, or cannot be loaded.')
    operators = 'with' if HAS_LIBRARY else 'without'
    print(f'{mmattn.__file__}, {operators} C++ operators, torch {torch.__version__}, Python {sys.version}')
    image = torch.rand(1, 3, 64, 64)
    for name in backbones.__all__:
        cls = getattr(backbones, name)
        for arch in list(cls.arch_zoo)[:1]:
            print(name, arch, [tuple(each.shape) for each in cls(**{cls.arch_argument: arch})(image)])
    print('timm', timm.create_model('elsa_swin_tiny', num_classes=10).eval()(image).argmax().item())
    foreign = sorted({'mmcv', 'mmdet', 'mmseg', 'mmpretrain'} & set(sys.modules))
    if foreign:
        sys.exit(f'Imported: {", ".join(foreign)}.')


if __name__ == '__main__':
    main()
