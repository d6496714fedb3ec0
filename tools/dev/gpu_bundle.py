"""Collect what gpu_check.py needs on a machine with a GPU that has torch, and no network and no compiler.

    python tools/dev/gpu_bundle.py work_dirs/gpu_bundle.zip [--photos FOLDER] [--kernels FOLDER]

in the project's environment. There, in a copy of this checkout:

    python3 tools/dev/gpu_check.py --bundle work_dirs/gpu_bundle.zip --out OUT

The file has packages for CPython 3.12 on Linux with x86-64, but those in THERE, with the operators of MMCV from
projects/mmcv_ops; mmattn's library for CPUs; Triton's kernels, which gpu_kernels.py compiles, into work_dirs/triton if
they are not there yet; made-up images; and photos: the images for validation in FOLDER/coco and
FOLDER/ADEChallengeData2016. MMPretrain does not import beside transformers 5, so a package of that name hides it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = 'mmattn/ops/_cpu.abi3.so'
#: what else the tests import is on the machine: pytest, pytest-xdist and hypothesis
NEEDED = ['onedl-mmengine', 'onedl-mmdetection', 'onedl-mmsegmentation', 'onedl-mmpretrain', 'timm', 'ftfy']
#: packages of the machine, and their requirements
THERE = set(
    'torch torchvision triton numpy scipy pillow matplotlib opencv-python opencv-python-headless scikit-image imageio '
    'numba networkx pyyaml rich tqdm regex huggingface-hub safetensors filelock packaging click markdown six'.split()
)
PLATFORMS = [f'manylinux_2_{minor}_x86_64' for minor in (28, 27, 24, 17)] + ['manylinux2014_x86_64']
STUB = "raise ModuleNotFoundError('transformers is hidden: MMPretrain needs a version below 5', name='transformers')\n"
LIMIT = 50e6  #: bytes of the file; what is carried with it must fit, too


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('file', type=Path)
    parser.add_argument('--photos', type=Path, metavar='FOLDER')
    parser.add_argument('--kernels', type=Path, metavar='FOLDER', help='of gpu_kernels.py (default: it runs now)')
    args = parser.parse_args()
    args.file.parent.mkdir(parents=True, exist_ok=True)
    part = args.file.with_suffix('.part')
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder / 'site')
        (folder / 'site' / 'transformers').mkdir()
        (folder / 'site' / 'transformers' / '__init__.py').write_text(STUB, 'utf-8')
        shutil.copy(ROOT / LIBRARY, folder)
        if args.kernels:
            shutil.copytree(args.kernels, folder / 'kernels')
        else:
            subprocess.run([sys.executable, ROOT / 'tools/dev/gpu_kernels.py', folder / 'kernels'], check=True)
        make = [sys.executable, ROOT / 'projects/lab/tools/make_toy_data.py', folder / 'toy', '--train', '1']
        subprocess.run(make, check=True)
        if args.photos:
            copy_photos(args.photos, folder / 'photos')
        with zipfile.ZipFile(part, 'w', zipfile.ZIP_DEFLATED) as file:
            for path in sorted(folder.rglob('*')):
                if path.is_file():
                    file.write(path, path.relative_to(folder))
    if part.stat().st_size > LIMIT:
        part.unlink()
        sys.exit(f'The bundle would have more than {LIMIT / 1e6:.0f} MB: take fewer photos.')
    part.replace(args.file)
    print(f'{args.file}: {args.file.stat().st_size / 1e6:.1f} MB')


def unpack(file: Path, folder: Path, root: Path) -> Path:
    """Unpack a bundle into a folder, and mmattn's library into the checkout if it has none. Returns the folder."""
    with zipfile.ZipFile(file) as packed:
        packed.extractall(folder)
    if not (root / LIBRARY).exists():
        shutil.copy(folder / Path(LIBRARY).name, root / LIBRARY)
    return folder


def install(site: Path) -> None:
    """Put the packages into a folder, and into MMCV the file of its operators."""
    import setup_env  # beside this file

    os.environ['MMCV_OPS'] = 'torch'
    pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check', '--quiet']
    wheels = [setup_env.mmcv_wheel(pip)]
    pure, compiled = requirements()
    with tempfile.TemporaryDirectory() as folder:
        build = ['wheel', '--no-deps', '--no-build-isolation', '--wheel-dir', folder]  # some have no wheel to download
        subprocess.run([*pip, *build, *pure], check=True)
        wheels += Path(folder).glob('*.whl')
        platforms = [part for name in PLATFORMS for part in ('--platform', name)]
        target = ['--target', site, '--python-version', '3.12', '--implementation', 'cp', *platforms]
        options = ['--only-binary=:all:', '--no-deps', '--no-compile']
        subprocess.run([*pip, 'install', *target, *options, *wheels, *compiled], check=True)
    shutil.copy(ROOT / 'projects/mmcv_ops/beside_mmcv/_ext.py', site / 'mmcv')
    for tests in site.glob('*/tests'):
        shutil.rmtree(tests)


def requirements() -> tuple[list[str], list[str]]:
    """What the packages need and the machine does not have, in the versions of this environment: those in Python alone,
    and compiled ones."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pure: dict[str, bool] = {}
    todo = [*NEEDED, 'onedl-mmcv']
    while todo:
        name = todo.pop()
        if name in pure:
            continue
        package = distribution(name)
        pure[name] = 'Root-Is-Purelib: true' in package.read_text('WHEEL')
        for requirement in map(Requirement, package.requires or ()):
            needed = canonicalize_name(requirement.name)
            if needed not in THERE and (not requirement.marker or requirement.marker.evaluate({'extra': ''})):
                todo.append(needed)
    del pure['onedl-mmcv']  # setup_env.py builds it without its operators
    exact = {name: f'{name}=={distribution(name).version}' for name in sorted(pure)}
    return [exact[name] for name in exact if pure[name]], [exact[name] for name in exact if not pure[name]]


def copy_photos(photos: Path, target: Path) -> None:
    """Copy the images for validation, and their annotations."""
    for name in (
        'coco/val2017',
        'coco/annotations/instances_val2017.json',
        'ADEChallengeData2016/images/validation',
        'ADEChallengeData2016/annotations/validation',
    ):
        source, copy = photos / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)


if __name__ == '__main__':
    main()
