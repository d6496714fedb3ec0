"""Export a segmentor, a detector, or the backbone of any config to ONNX or torch.export, for images of any size.

    python tools/export.py configs/shunted/shunted-s_fpn_8xb2-80k_ade20k-512x512.py CHECKPOINT --out shunted.onnx
    python tools/export.py configs/elsa_swin/mask-rcnn_elsa-swin-t_fpn_ms-1x_coco.py CHECKPOINT --out detector.onnx

The input is one image, normalised as the config does it, but not padded. The output of a segmentor
is the class scores of its decode head, at the head's stride; that of a detector is boxes, labels, scores and masks;
that of a backbone is its feature maps. The metadata of the file has classes, mean, standard deviation and the rule for
the size. The file is compared with the model at three sizes before it gets its name; an ONNX file in each of
onnxruntime and openvino that is installed.

With --int8, layers of a segmentor compute with integers of 8 bits. Their ranges come from the images in a folder, as
the config's test pipeline makes them. The tool then writes how much the outputs change:

    python tools/export.py CONFIG CHECKPOINT --out small.onnx --int8 --images DIR
"""

import argparse
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import DATASETS, MODELS, DefaultScope
from torch import Tensor, nn

import mmattn  # noqa: F401, registers the backbones
from mmattn.export.graphs import RUNTIMES, as_module, largest_difference, smallest_side, trace, write_onnx
from mmattn.weights import StrictModule, read_checkpoint, read_file
from mmguard.checks.classes import saved_meta
from mmguard.checks.config_types import type_name
from mmguard.checks.config_values import dataset_configs
from mmguard.checks.images import CheckedPipeline, image_suffixes
from mmguard.checks.pixels import pixels_of
from mmguard.errors import InputError
from mmguard.outputs import check_output, whole_file
from mmguard.packages import require_project
from mmguard.prediction.predict import class_names
from mmguard.runs.configs import add_config, load_config, package_of
from mmguard.runs.resuming import check_complete, whole_model_weights
from mmguard.runs.running import run_tool, running

SIZES = ((64, 64), (97, 131), (256, 320))
TOLERANCE = 1e-3
#: images that --int8 reads
MOST_IMAGES = 20
#: sizes for detectors, whose last map has a stride of up to 128
DETECTOR_SIZES = ((160, 257), (229, 150), (256, 320))
#: score, share of the pixels of a mask. A mask's border may move where its probability is at the threshold, by rounding
DETECTOR_TOLERANCES = (1e-3, 1e-3)
#: share of the detections that only the model or only the file finds, see largest_differences
MOST_ALONE = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config(parser)
    parser.add_argument('checkpoint', nargs='?', help="weights (default: those of the config's init_cfg)")
    parser.add_argument('--out', type=Path, required=True, help='file to write, .onnx or .pt2; it must not exist yet')
    parser.add_argument('--backbone', action='store_true', help='the backbone alone')
    parser.add_argument('--image', type=Path, help='compare a detector on this image, resized (default: on noise)')
    parser.add_argument('--int8', action='store_true', help='layers in 8 bits; of segmentors, with --images')
    parser.add_argument('--images', type=Path, metavar='DIR', help='images like those to come, for --int8; 20 are used')
    args = parser.parse_args()
    if args.out.suffix not in ('.onnx', '.pt2'):
        sys.exit(f'--out must name a .onnx or .pt2 file, not {args.out}.')
    if not os.path.isdir(args.out.parent):
        sys.exit(f'there is no folder {args.out.parent} for {args.out.name}.')
    check_output(args.out)
    if args.out.exists():
        sys.exit(f'{args.out} exists already: remove it, or name another file.')

    cfg = load_config(args.config, args.cfg_options, row=args.row, backbone_only=args.backbone)
    cfg.default_scope = package_of(cfg)
    is_detector = not args.backbone and cfg.default_scope == 'mmdet'
    if not is_detector and not args.backbone and cfg.default_scope != 'mmseg':
        sys.exit(f'{args.config} is not a segmentor or detector: export the backbone of other models with --backbone.')
    if is_detector and args.out.suffix != '.onnx':
        sys.exit(f'a detector is exported as .onnx, not as {args.out.suffix}.')
    if args.image and not is_detector:
        sys.exit('--image is for detectors: other models are compared on noise.')
    if args.int8 and (args.backbone or is_detector or args.out.suffix != '.onnx'):
        sys.exit('--int8 is for segmentors as .onnx.')
    if args.int8 != bool(args.images):
        sys.exit('--int8 and --images go together.')
    suffixes = image_suffixes(cfg)
    files = sorted(path for path in args.images.rglob('*') if path.suffix.lower() in suffixes) if args.images else []
    if args.int8 and len(files) < 2:
        sys.exit(
            f'--images {args.images} must be a folder with two images or more, which end with {", ".join(suffixes)}.'
        )
    if is_detector or args.int8:
        require_project('deploy', 'a detector as a file' if is_detector else '--int8')
    in_channels = cfg.model.backbone.get('in_channels', 3)
    contents = read_file(args.checkpoint) if args.checkpoint and not args.backbone else {}
    with running(cfg):
        model = build(cfg, args.checkpoint, args.backbone, contents)
    files = [args.image] if args.image else files[:: max(1, len(files) // MOST_IMAGES)][:MOST_IMAGES]
    examples = prepared(cfg, model, files)
    if is_detector:
        from mmattn_deploy.detectors import TraceableDetector

        graph = trace(TraceableDetector(model), in_channels)
    else:
        check_head(model)
        graph = trace(model, in_channels)
    facts = dict(metadata(cfg, model, contents, in_channels), smallest_side=smallest_side(graph))
    if facts.get('std') == [1.0]:
        print(
            'Neither Normalize in the test pipeline nor the data preprocessor normalises: mean is 0, std 1 in the file.'
        )
    if 'slide' in facts:
        print('The file gives the scores of a whole image; the config tests in the windows that are in its metadata.')
    with whole_file(args.out) as part:
        if is_detector:
            write_detector(model, graph, images(examples, in_channels), part, facts)
        else:
            write(model, graph, in_channels, part, facts)
            if args.int8:
                write_int8(part, examples)
    print(f'{args.out}  {args.out.stat().st_size / 1e6:.1f} MB, for sides of {smallest_side(graph)} pixels or more')


def build(cfg: Config, checkpoint: str | None, backbone: bool, contents: object) -> nn.Module:
    """The model of a config with the weights in the contents of a checkpoint, or its backbone, in evaluation mode."""
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model.backbone if backbone else cfg.model)
    if checkpoint is None:
        model.init_weights()
    elif isinstance(model, StrictModule):
        model.load_pretrained(checkpoint)
    else:
        weights = read_checkpoint(checkpoint)[0] if backbone else whole_model_weights(contents, model, checkpoint)
        check_complete(weights, model, checkpoint)
        model.load_state_dict(weights, strict=False)
    model = revert_sync_batchnorm(model).cpu()
    model.eval()  # returns nothing with some backbones of MMDetection
    return model


def check_head(model: nn.Module) -> None:
    """Raise an InputError if the head of a segmentor takes more than feature maps, as Mask2Former's does."""
    head = getattr(model, 'decode_head', None)
    if head is None or isinstance(head, nn.ModuleList):  # of a cascade, whose model passes on the maps of each head
        return
    arguments = inspect.signature(head.forward).parameters.values()
    if sum(one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD for one in arguments) > 1:
        raise InputError(
            f'the {type(head).__name__} predicts masks, not class scores: export the backbone alone, with --backbone'
        )


def metadata(cfg: Config, model: nn.Module, contents: object, in_channels: int) -> dict[str, object]:
    """What a program needs to know to run the file; of a backbone, nothing."""
    if not hasattr(model, 'data_preprocessor'):  # a backbone
        return {}
    leaves = [node for _, node in dataset_configs(cfg, 'test') if 'pipeline' in node]
    sources = [*saved_meta(contents)]
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        sources += [DATASETS.build(dict(node, pipeline=[], lazy_init=True)).metainfo for node in leaves[:1]]
    steps = [dict(step, type=type_name(step['type'])) for step in (leaves[0]['pipeline'] if leaves else ())]
    pixels = pixels_of(cfg, model.data_preprocessor)
    return dict(
        classes=class_names(model, *sources)[0],
        channels=pixels.channels(in_channels),
        mean=[round(value, 4) for value in pixels.mean.tolist()],
        std=[round(value, 4) for value in pixels.std.tolist()],
        load=[step for step in steps if step['type'].startswith('Load') and 'Annotations' not in step['type']],
        resize=[step for step in steps if 'Resize' in step['type']],
        **from_scores(model),
    )


def from_scores(model: nn.Module) -> dict[str, object]:
    """How a segmentor gets labels from its scores, where that is not the largest score of a whole image.

    ``threshold``: above it, the sigmoid of the only channel is class 1. ``slide``: ``crop_size`` and ``stride``,
    (height, width) of windows whose scores the test averages. The exported graph gives the scores of what it is given.
    """
    head, test_cfg, found = getattr(model, 'decode_head', None), getattr(model, 'test_cfg', None) or {}, {}
    head = head[-1] if isinstance(head, nn.ModuleList) else head  # of a cascade
    if getattr(head, 'out_channels', None) == 1:
        found['threshold'] = head.threshold
    if head is not None and test_cfg.get('mode') == 'slide':
        found['slide'] = {key: test_cfg.get(key) for key in ('crop_size', 'stride')}
    return found


def write(
    model: nn.Module, graph: 'torch.export.ExportedProgram', in_channels: int, file: Path, facts: dict[str, object]
) -> None:
    """Write a graph to a file, and compare the file's outputs with the model's."""
    if file.suffix == '.pt2':
        torch.export.save(graph, file, extra_files={'metadata.json': json.dumps(facts)})
        runs = {'torch': as_module(torch.export.load(file))}
    else:
        write_onnx(graph, file, output_names(model, in_channels), facts)
        runs = installed_runtimes(file)
    for runtime, run in runs.items():
        for (height, width), difference in zip(SIZES, largest_difference(model, run, SIZES, in_channels)):
            print(f'{height} x {width}, {runtime}: within {difference:.1e} of the model')
            if not difference <= TOLERANCE:
                sys.exit(f'In {runtime}, the file does not compute what the model does; it was removed.')


def write_int8(file: Path, images: list[np.ndarray]) -> None:
    """Replace an ONNX file by one with layers in 8 bits."""
    from mmattn_deploy.int8 import LARGEST_ERROR, quantise

    size = file.stat().st_size
    for kind, error in quantise(file, file, images).items():
        kept = ', so they stay in float32' if kind != 'all' and error > LARGEST_ERROR else ''
        print(f'{kind} in 8 bits: outputs change by {error:.1%}{kept}')
    print(f'{size / 1e6:.1f} MB became {file.stat().st_size / 1e6:.1f} MB')


def prepared(cfg: Config, model: nn.Module, files: list[Path]) -> list[np.ndarray]:
    """Images as the test pipeline and the data preprocessor make them, (1, in_channels, H, W) each.

    Raises:
        InputError: naming an image that cannot be read.
    """
    steps = next(node['pipeline'] for _, node in dataset_configs(cfg, 'test') if 'pipeline' in node)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        steps = Compose([step for step in steps if 'Annotations' not in str(step.get('type'))])
        pipeline = CheckedPipeline(steps, None)  # no dataset, since there are no label maps
        images = [pipeline(dict(img_path=str(file)))['inputs'] for file in files]
        return [model.data_preprocessor(dict(inputs=[image]))['inputs'].numpy() for image in images]


def installed_runtimes(file: Path) -> dict[str, Callable]:
    """The ONNX file in each runtime that is installed, by the runtime's name."""
    found = {name: read(file) for name, read in RUNTIMES.items() if find_spec(name)}
    if not found:
        print(f'Not compared with the model: neither {" nor ".join(RUNTIMES)} is installed.')
    return found


def output_names(model: nn.Module, in_channels: int) -> list[str]:
    """Names of the outputs of a segmentor or a backbone."""
    if hasattr(model, 'decode_head'):
        return ['scores']
    side = 448  # a multiple of the strides 4, 8, 14, 16 and 32
    with torch.no_grad():
        maps = model(torch.zeros(1, in_channels, side, side))
    return [f'map{number}_stride{side // one.shape[2]}' for number, one in enumerate(maps)]


def write_detector(
    model: nn.Module,
    graph: 'torch.export.ExportedProgram',
    examples: Iterator[Tensor],
    file: Path,
    facts: dict[str, object],
) -> None:
    """Write a detector's graph to an ONNX file, and compare what the file and the model find in images."""
    from mmattn_deploy.detectors import OUTPUTS, detect, largest_differences

    write_onnx(graph, file, OUTPUTS, facts)
    count = 0
    runs = installed_runtimes(file)
    for image in examples if runs else ():
        expected = detect(model, image)
        count += len(expected[0])
        for runtime, run in runs.items():
            alone, *differences = largest_differences(expected, found := run(image))
            line = '{} x {}, {}: {} detections, {} in one of the two only, '
            line += 'boxes within {:.1e} pixels, scores within {:.1e}'
            line += ', masks differ in {:.1e} of the pixels' if len(expected) > 3 else ''
            print(line.format(*image.shape[2:], runtime, len(expected[0]), alone, *differences))
            within = all(difference <= limit for difference, limit in zip(differences[1:], DETECTOR_TOLERANCES))
            if not within or alone > MOST_ALONE * max(len(expected[0]), len(found[0])):
                sys.exit(f'In {runtime}, the file does not find what the model does; it was removed.')
    if runs and not count:
        print('The model found nothing, so little was compared: name an image with objects by --image.')


def images(examples: list[np.ndarray], in_channels: int) -> Iterator[Tensor]:
    """Images (1, in_channels, H, W) of every size: the first of some normalised ones, resized, or noise."""
    for size in DETECTOR_SIZES:
        if examples:
            yield torch.nn.functional.interpolate(torch.from_numpy(examples[0]), size, mode='bilinear')
        else:
            yield torch.randn(1, in_channels, *size)


if __name__ == '__main__':
    run_tool(main)
