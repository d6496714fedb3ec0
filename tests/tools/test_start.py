"""tools/start.py: annotations of VOC and YOLO are converted, and the commands that it prints run."""

import json
import re
import shlex
from pathlib import Path

import pytest
from mmengine.config import Config

from tests.own_data.makers import CLASSES, class_folders, coco, image, label_maps, voc, voc_file, voc_in_parts, yolo
from tests.tools.in_process import NO_WORKERS, run_tool


def start(*arguments: object) -> tuple[Config, list[list[str]]]:
    """The config that the tool writes, and the commands that it prints, each in its words."""
    done = run_tool('start', *arguments)
    assert done.returncode == 0, done.stderr
    commands = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith('python ')]
    assert [Path(command[1]).name for command in commands] == ['train.py', 'test.py', 'predict.py']
    assert 'images: ' in done.stdout.lower() and 'Weights: ' in done.stdout
    return Config.fromfile(commands[0][2]), commands


def yolo_of_ultralytics(folder: Path) -> None:
    """Folders of the parts in images/ and labels/, and no names."""
    for part in ('train', 'val'):
        for number in range(3):
            image(folder / 'images' / part / f'{number}.jpg', number)
            (folder / 'labels' / part).mkdir(parents=True, exist_ok=True)
            (folder / 'labels' / part / f'{number}.txt').write_text(f'{number} 0.5 0.5 0.5 0.5\n')


def yolo_by_number(folder: Path) -> None:
    """The names are by number, in no order, and one of the numbers is a text."""
    yolo(folder)
    (folder / 'data.yaml').write_text("names:\n  2: kite\n  '1': donut\n  0: book\n")


def yolo_beside(folder: Path) -> None:
    """Each text file is beside its image, and the names are in the first layout's file."""
    for number in range(5):
        image(folder / 'photos' / f'{number}.png', number)
        (folder / 'photos' / f'{number}.txt').write_text(f'{number % 3} 0.5 0.5 0.5 0.5\n')
    (folder / 'photos' / 'classes.txt').write_text('\n'.join(CLASSES))


@pytest.mark.parametrize(
    'make, counts, arguments',
    [
        pytest.param(voc, (3, 2), (), id='VOC'),
        pytest.param(voc_in_parts, (3, 2), (), id='VOC in parts'),
        pytest.param(yolo, (3, 3), (), id='YOLO in parts'),
        pytest.param(yolo_by_number, (3, 3), (), id='YOLO by number'),
        pytest.param(yolo_of_ultralytics, (3, 3), ('--classes', *CLASSES), id='YOLO with folders'),
        pytest.param(yolo_beside, (4, 1), (), id='YOLO beside'),
    ],
)
def test_conversion(make, counts, arguments, tmp_path):
    """All boxes, the names of the classes and the parts are those of the annotations, and a second call is the same."""
    make(tmp_path)
    cfg, commands = start(tmp_path, '--head', 'faster-rcnn', '--backbone', 'shunted-t', *arguments)
    assert (*cfg.metainfo.classes,) == CLASSES
    for part, count in zip(('train', 'val'), counts):
        contents = json.loads(Path(cfg.data_root, cfg[f'{part}_dataloader'].dataset.ann_file).read_text())
        assert len(contents['images']) == len(contents['annotations']) == count
        assert (*(category['name'] for category in contents['categories']),) == CLASSES
    assert any(Path(commands[2][4]).glob('*')) and Path(commands[2][4]).is_dir()
    assert start(tmp_path, '--head', 'faster-rcnn', '--backbone', 'shunted-t')[0].text == cfg.text


def test_refusals(tmp_path):
    """The tool refuses in one sentence what cannot be converted, or what training would refuse."""
    yolo_of_ultralytics(tmp_path / 'yolo')
    arguments = '--head', 'faster-rcnn', '--backbone', 'shunted-t'
    assert 'numbers of classes' in run_tool('start', tmp_path / 'yolo', *arguments).sentence
    yolo(tmp_path / 'names')
    for names, sentence in (
        ('{0: cat, 2: dog}', 'data.yaml: "names" has the numbers 0, 2, which should be .* --classes'),
        ('{1: cat, 2: dog, 3: kite}', 'the numbers 1, 2, 3, which should be 0, 1, 2'),
        ("{0: cat, '0': dog}", 'the numbers 0, 0, which'),
        ('{a: cat, 1: dog}', 'data.yaml: a key of "names" is no number: .*a'),
        ('cat', """data.yaml: "names" is 'cat', not a list"""),
    ):
        (tmp_path / 'names' / 'data.yaml').write_text(f'names: {names}\n')
        assert re.search(sentence, run_tool('start', tmp_path / 'names', *arguments).sentence)
        assert not [*(tmp_path / 'names').rglob('*.json')]
    yolo_beside(tmp_path / 'lines')
    (tmp_path / 'lines' / 'photos' / 'classes.txt').write_text('book\n\ndonut\nkite\n')
    assert 'classes.txt has no name for the number 1' in run_tool('start', tmp_path / 'lines', *arguments).sentence
    for year in (2007, 2012):
        voc(tmp_path / 'voc' / f'VOC{year}')
    assert 'several folders have annotations' in run_tool('start', tmp_path / 'voc', *arguments).sentence
    voc_in_parts(tmp_path / 'parts')
    for number in (1, 2):
        voc_file(tmp_path / 'parts' / 'valid' / f'valid{number}.xml', '')
    assert 'valid has no object for' in run_tool('start', tmp_path / 'parts', *arguments).sentence
    assert not [*(tmp_path / 'parts').rglob('*.json')]
    coco(tmp_path / 'coco' / 'a.json', tmp_path / 'coco', 60)
    (tmp_path / 'coco' / '59.jpg').unlink()
    assert '59.jpg' in run_tool('start', tmp_path / 'coco', *arguments).sentence


#: kind -> what makes it, head, backbone, and settings for two small steps and a test
SHORT = {
    'detector': (
        lambda f: coco(f / 'a.json', f / 'images'),
        ('mask-rcnn', 'shunted-t'),
        ['train_dataloader.dataset.pipeline.2.scale=(96,64)', 'train_cfg.max_epochs=1', 'train_cfg.val_interval=1']
        + [f'{part}_dataloader.dataset.pipeline.1.scale=(96,64)' for part in ('val', 'test')]
        + ['model.train_cfg.rpn_proposal.max_per_img=20', 'model.test_cfg.rcnn.score_thr=0.0'],
    ),
    'segmentor': (
        lambda f: label_maps(f / 'images', f / 'labels', 20),
        ('upernet', 'shunted-t'),
        ['train_dataloader.dataset.pipeline.2.scale=(128,64)', 'train_dataloader.dataset.pipeline.3.crop_size=(64,64)']
        + [f'{part}_dataloader.dataset.pipeline.1.scale=(128,64)' for part in ('val', 'test')]
        + ['model.data_preprocessor.size=(64,64)', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2'],
    ),
    'classifier': (class_folders, ('classifier', 'shunted-t'), ['train_cfg.max_epochs=2', 'train_cfg.val_interval=1']),
}


@pytest.mark.slow
@pytest.mark.parametrize('kind', SHORT)
def test_commands(kind, tmp_path):
    """The printed commands train, test the best checkpoint, and predict on all images."""
    make, (head, backbone), short = SHORT[kind]
    make(tmp_path / 'own')
    _, (train, test, predict) = start(tmp_path / 'own', '--head', head, '--backbone', backbone)
    assert train[3:] == ['--auto-scale-lr'] and test[3] == predict[3] == f'work_dirs/{head}_{backbone}/best_*.pth'
    options = ['--cfg-options', *short, *NO_WORKERS, 'default_hooks.logger.interval=1']
    done = run_tool('train', *train[2:], '--work-dir', tmp_path / 'run', *options)
    assert done.returncode == 0, done.stderr[-2000:]
    (log,) = tmp_path.glob('run/*/*.log')
    losses = re.findall(r' loss: (\S+)', log.read_text())
    assert len(losses) >= 2 and all(float(loss) < 1e4 for loss in losses)
    # a detector of three steps may find nothing, and then has no best checkpoint
    checkpoint = next(tmp_path.glob('run/best_*.pth'), None) or next(tmp_path.glob('run/*_1.pth'))
    done = run_tool('test', test[2], checkpoint, '--work-dir', tmp_path / 'test', *options)
    assert done.returncode == 0, done.stderr[-2000:]
    found = tmp_path / 'found'
    done = run_tool('predict', predict[2], checkpoint, predict[4], '--out', found, *options)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len([*Path(predict[4]).rglob('*.jpg')]) == len([*found.rglob('*.jpg')])
