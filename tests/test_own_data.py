"""docs/own_data.md, followed word for word on toy data."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import DATASETS, MODELS, PARAM_SCHEDULERS, DefaultScope
from PIL import Image
from torch.optim import SGD

import mmattn
from mmattn.backbones import NAT
from mmguard.checks.config_types import nested
from mmguard.checks.pixels import check_pixels
from mmguard.runs.configs import enable_tta, load_config
from tests import PYTHONPATH, ROOT
from tests.tools.in_process import NO_WORKERS, run_tool

PAGE = (ROOT / 'docs' / 'own_data.md').read_text()
BLOCKS = [(kind, textwrap.dedent(block)) for kind, block in re.findall(r'```(python|bash)\n(.*?)```', PAGE, re.DOTALL)]
FILES = {block.partition('\n')[0].removeprefix('# '): block for kind, block in BLOCKS if kind == 'python'}
COMMANDS = [block for kind, block in BLOCKS if kind == 'bash']
#: class of the page -> label in the toy ADE20K
CLASSES = {'kite': 150, 'donut': 144, 'book': 68}
COLOURS = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (0, 0, 128)]
ARCH = dict(embed_dim=32, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), mlp_ratio=2, layer_scale=0)
#: settings for a narrow backbone; with those below, small images and few steps
SHORT = [
    *(f'model.backbone.arch.{key}={value}'.replace(' ', '') for key, value in dict(_delete_=True, **ARCH).items()),
    *NO_WORKERS,
]
MULTI_SCALE = 'train_dataloader.dataset.pipeline.3.transforms'
SHORT_DETECTOR = [
    *SHORT,
    'model.neck.in_channels=[32,64,128,256]',
    'model.roi_head.bbox_head.fc_out_channels=64',
    'model.train_cfg.rpn_proposal.max_per_img=50',
    'model.test_cfg.rpn.max_per_img=50',
    'model.test_cfg.rcnn.score_thr=0.0',
    'train_cfg.max_epochs=2',
    f'{MULTI_SCALE}.0.0.scales=[(128,96)]',
    f'{MULTI_SCALE}.1.0.scales=[(128,96)]',
    f'{MULTI_SCALE}.1.1.crop_size=(64,96)',
    f'{MULTI_SCALE}.1.2.scales=[(128,96)]',
    *(f'{split}_dataloader.dataset.pipeline.1.scale=(128,96)' for split in ('val', 'test')),
]
SHORT_SEGMENTOR = [
    *SHORT,
    'model.decode_head.in_channels=[32,64,128,256]',
    'model.decode_head.channels=16',
    'model.auxiliary_head.in_channels=128',
    'model.data_preprocessor.size=(64,64)',
    'train_cfg.max_iters=4',
    'train_cfg.val_interval=2',
    'default_hooks.checkpoint.interval=2',
    'train_dataloader.dataset.pipeline.2.scale=(256,64)',
    'train_dataloader.dataset.pipeline.3.crop_size=(64,64)',
    *(f'{split}_dataloader.dataset.pipeline.1.scale=(256,64)' for split in ('val', 'test')),
]


@pytest.fixture(scope='module')
def clone(tmp_path_factory):
    """A folder like a clone, with the files of the page and with toy data in data/own."""
    root = tmp_path_factory.mktemp('own')
    assert run_tool('make_toy_data', root / 'toy', '--train', 10, '--val', 1).returncode == 0
    for name, block in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(block)
    for name in ('tools', 'configs', 'projects'):
        (root / name).symlink_to(ROOT / name)

    own, coco = root / 'data' / 'own', root / 'toy' / 'coco'
    shutil.copytree(coco / 'train2017', own / 'images')
    contents = json.loads((coco / 'annotations' / 'instances_train2017.json').read_text())
    numbers = {category['name']: category['id'] for category in contents['categories']}
    contents['categories'] = [dict(id=numbers[name], name=name) for name in sorted(CLASSES, key=numbers.get)]
    contents['annotations'] = [a for a in contents['annotations'] if a['category_id'] in map(numbers.get, CLASSES)]
    (own / 'annotations.json').write_text(json.dumps(contents))
    (own / 'coloured').mkdir()
    for file in (root / 'toy' / 'ADEChallengeData2016' / 'annotations' / 'training').iterdir():
        labels = cv2.imread(str(file), cv2.IMREAD_UNCHANGED)
        coloured = np.zeros((*labels.shape, 3), np.uint8)
        for number, colour in zip(CLASSES.values(), COLOURS[1:]):
            coloured[labels == number] = colour[::-1]
        cv2.imwrite(str(own / 'coloured' / file.name), coloured)

    address = load_config(root / 'own' / 'detector.py').model.backbone.init_cfg.checkpoint
    weights = root / 'torch/hub/checkpoints' / hashlib.sha256(address.encode()).hexdigest()[:16] / 'nat_tiny.pth'
    weights.parent.mkdir(parents=True)  # as if they had been downloaded
    torch.save(NAT(ARCH).state_dict(), weights)
    wrapper = root / 'bin' / 'python'
    wrapper.parent.mkdir()
    wrapper.write_text(
        '#!/bin/bash\n'
        'case "$*" in\n'
        'tools/convert_data*) ;;\n'
        f'tools/*segmentor*) set -- "$@" --cfg-options {" ".join(map(repr, SHORT_SEGMENTOR))};;\n'
        f'tools/*) set -- "$@" --cfg-options {" ".join(map(repr, SHORT_DETECTOR))};;\n'
        f'esac\nexec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    yield root
    shutil.rmtree(root)


def bash(command: str, clone: Path) -> str:
    """Run a block of the page. ``python`` is this Python, and the tools get the SHORT settings."""
    env = {**os.environ, 'PATH': f'{clone}/bin:{os.environ["PATH"]}', 'PYTHONPATH': PYTHONPATH, 'OMP_NUM_THREADS': '1'}
    env['TORCH_HOME'] = f'{clone}/torch'
    done = subprocess.run(['bash', '-ec', command], cwd=clone, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f'{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}'
    return done.stdout


@pytest.mark.slow
def test_data_is_split_and_translated(clone):
    """No image is in both parts, no object is lost, and each colour becomes the label of its class."""
    own = clone / 'data' / 'own'
    for command in COMMANDS:
        if 'tools/' not in command or 'convert_data' in command:
            printed = bash(command, clone)
            assert 'split.py' not in command or printed in FILES['own/detector.py']
    parts = {part: json.loads((own / f'{part}.json').read_text()) for part in ('train', 'val')}
    files = {part: {image['file_name'] for image in contents['images']} for part, contents in parts.items()}
    assert (len(files['train']), len(files['val'])) == (8, 2) and not files['train'] & files['val']
    whole = json.loads((own / 'annotations.json').read_text())
    assert sum(len(contents['annotations']) for contents in parts.values()) == len(whole['annotations'])
    names = {part: set((own / f'{part}.txt').read_text().split()) for part in ('train', 'val')}
    assert (len(names['train']), len(names['val'])) == (8, 2) and not names['train'] & names['val']
    for file in (own / 'labels').iterdir():
        original = cv2.imread(str(clone / 'toy/ADEChallengeData2016/annotations/training' / file.name), -1)
        labels = np.asarray(Image.open(file))
        for label, number in enumerate(CLASSES.values(), 1):
            assert np.array_equal(labels == label, original == number)
        assert set(np.unique(labels)) <= {0, 1, 2, 3}


def test_configs_pass_their_checks(clone, monkeypatch):
    """Each config of the page passes the checks, and so does each setting of the table about memory."""
    monkeypatch.chdir(clone)
    (clone / '.mim').mkdir()
    (clone / '.mim' / 'configs').symlink_to(ROOT / 'configs')
    monkeypatch.setattr(mmattn, '__path__', [str(clone), *mmattn.__path__])
    configs = [name for name in FILES if not name.startswith('data/')]
    assert len(configs) >= 7
    for name in configs:
        cfg = load_config(name)
        dataset = cfg.train_dataloader.dataset
        assert 'anywhere' in name or 'data/own' in dataset.get('dataset', dataset).data_root
    settings = re.findall(r'`(\w+\.[\w.]+)=(\w+)` \|', PAGE)
    assert len(settings) >= 3
    for key, value in settings:
        load_config('own/detector.py', {key: eval(value)})


@pytest.mark.parametrize('name, channels, largest', [('one_channel', 1, 4095), ('four_bands', 4, 9000)])
def test_other_channels(tmp_path, monkeypatch, capsys, name, channels, largest):
    """Images of 16 bits, of one channel and of four bands: the script gives numbers that fit, the weights are fitted,
    and training and test get the same values, whose mean is 0 and deviation 1."""
    tifffile = pytest.importorskip('tifffile') if channels == 4 else None
    random = np.random.default_rng(0)
    own, folder = tmp_path / 'data' / 'own', 'grey' if channels == 1 else 'bands'
    for each in (tmp_path / 'own', own / folder, own / 'labels'):
        each.mkdir(parents=True)
    for file in 'abc':
        image = random.integers(largest // 2, largest, (96, 128, channels), np.uint16)
        if tifffile:
            tifffile.imwrite(own / folder / f'{file}.tif', image)
        else:
            cv2.imwrite(str(own / folder / f'{file}.png'), image)
        cv2.imwrite(str(own / 'labels' / f'{file}.png'), random.integers(0, 4, (96, 128), np.uint8))
    for part in ('train', 'val'):
        (own / f'{part}.txt').write_text('a\nb\nc')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', ['', str(channels), *map(str, (own / folder).iterdir())])
    exec(FILES['data/own/mean_and_std.py'], {})
    values = capsys.readouterr().out.strip()
    base = str(ROOT / 'projects/lab/configs/toy' / 'elsa-swin-toy_upernet.py')
    segmentor = FILES['own/segmentor.py'].replace(', auxiliary_head=heads', '')
    weights = "model = dict(backbone=dict(init_cfg=dict(_delete_=True, type='Pretrained', checkpoint='toy.pth')), "
    segmentor = segmentor.replace('model = dict(', weights)
    (tmp_path / 'own' / 'segmentor.py').write_text(re.sub(r"'\.\./configs/.*'", repr(base), segmentor))
    (tmp_path / 'own' / 'c.py').write_text(re.sub(r'mean=.*?], std=.*?]', values, FILES[f'own/{name}.py']))
    node = load_config(base).model.backbone
    torch.save(MODELS.build(dict(node, init_cfg=None)).state_dict(), 'toy.pth')
    cfg = load_config('own/c.py')
    check_pixels(cfg)
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(cfg.model)
        samples = [DATASETS.build(cfg[f'{split}_dataloader'].dataset)[0] for split in ('train', 'test')]
    model.init_weights()
    train, test = (model.data_preprocessor(pseudo_collate([one, one]), one is samples[0]) for one in samples)
    for batch in (train, test):
        inside = batch['inputs'][0, :, :64, :64]
        assert len(inside) == channels and inside.mean().abs() < 0.3 and 0.3 < inside.std() < 1.2
    assert all(torch.isfinite(loss) for key, loss in model(**train, mode='loss').items() if 'loss' in key)


@pytest.mark.parametrize('kind, toy', [('detector', 'mask-rcnn_shunted-toy_fpn'), ('segmentor', 'shunted-toy_fpn')])
@pytest.mark.parametrize('on_cpu', [False, True])
def test_one_size(clone, monkeypatch, kind, toy, on_cpu):
    """One number sets all sizes: of training, validation, test and --tta."""
    monkeypatch.chdir(clone)
    text = re.sub('\nsize = .*', '\nsize = 200', FILES[f'own/{kind}_size.py'])
    own = re.sub("_base_ = '.*'", f"_base_ = '../projects/lab/configs/toy/{toy}.py'", FILES[f'own/{kind}.py'])
    (clone / 'own' / f'{kind}_cpu.py').write_text(own.replace(', auxiliary_head=heads', ''))
    (clone / 'own' / 'sized.py').write_text(text.replace(f'{kind}.py', f'{kind}_cpu.py') if on_cpu else text)
    cfg = load_config('own/sized.py')
    enable_tta(cfg)
    factors = dict(train=[1], val=[1], test=cfg.tta_views.factors)
    for split in factors:
        steps = [step for _, step in nested(cfg[f'{split}_dataloader'].dataset.pipeline, '')]
        sizes = {
            min(size) for step in steps for key in ('scale', 'scales', 'crop_size') for size in [step.get(key)] if size
        }
        assert sizes == {200 * factor for factor in factors[split]}
    assert kind == 'detector' or cfg.model.module.data_preprocessor['size'] == (200, 200)


def test_size_of_classifiers(clone, monkeypatch):
    """The page's size is that of all images of a classifier, whose base has its crops inside of other steps."""
    monkeypatch.chdir(clone)
    cfg = load_config('own/classifier_size.py')
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        for split in ('train', 'val', 'test'):
            steps = Compose(cfg[f'{split}_dataloader'].dataset.pipeline[1:])
            assert steps(dict(img=np.zeros((300, 400, 3), np.uint8)))['inputs'].shape == (3, 128, 128)


def test_weights_of_the_path_on_a_cpu(tmp_path):
    """The backbone of the page's classifier loads into that of its detectors and segmentor."""
    section = PAGE.partition('### On a CPU')[2].partition('\n## ')[0]
    names = re.findall(r'`([\w-]+_(?:fpn|in1k)\.py)`', section)
    *others, classifier = (Config.fromfile(ROOT / 'projects/lab/configs/toy' / name).model.backbone for name in names)
    weights = MODELS.build(classifier).state_dict()
    torch.save({f'backbone.{key}': value for key, value in weights.items()}, tmp_path / 'classifier.pth')
    start = eval(re.search(r'\(init_cfg=(.*?\))\)`', section)[1]) | dict(checkpoint=str(tmp_path / 'classifier.pth'))
    assert start.pop('_delete_') and len(others) == 3
    for other in others:
        backbone = MODELS.build(dict(other, init_cfg=start))
        backbone.init_weights()
        assert all(torch.equal(value, weights[key]) for key, value in backbone.state_dict().items() if key in weights)
        assert set(weights) >= {key for key in backbone.state_dict() if key.startswith('stages')}


@pytest.mark.parametrize('length', [5, 400])
def test_warm_up_is_a_share_of_the_steps(clone, monkeypatch, length):
    """It ends before the rate falls, whatever the number of images."""
    monkeypatch.chdir(clone)
    longer = load_config('own/detector_longer.py')
    rises = [
        (longer.param_scheduler[0], longer.train_cfg.max_epochs, 20),
        (load_config(ROOT / 'projects/lab/configs/toy/shunted-toy_in1k.py').param_scheduler[0], 8, 4),
    ]
    for rise, epochs, share in rises:
        built = PARAM_SCHEDULERS.build(
            dict(rise, _scope_='mmengine', optimizer=SGD([torch.zeros(1)], 0.1), epoch_length=length)
        )
        assert built.end == epochs * length // share


def test_folds(tmp_path, monkeypatch):
    """Each image is for validation in one fold and for training in the others, with its annotations."""
    coco = dict(images=[dict(id=i) for i in range(12)], annotations=[dict(id=i, image_id=i % 12) for i in range(30)])
    (tmp_path / 'data' / 'own').mkdir(parents=True)
    (tmp_path / 'data' / 'own' / 'annotations.json').write_text(json.dumps(dict(coco, categories=[])))
    monkeypatch.chdir(tmp_path)
    exec(FILES['data/own/folds.py'], {})
    seen = []
    for fold in range(5):
        train, val = (json.loads(Path(f'data/own/fold{fold}_{part}.json').read_text()) for part in ('train', 'val'))
        assert len(train['annotations']) + len(val['annotations']) == 30 and len(train['images']) >= 9
        for part in (train, val):
            numbers = {image['id'] for image in part['images']}
            assert {one['image_id'] for one in part['annotations']} == numbers
        seen += [image['id'] for image in val['images']]
    assert sorted(seen) == list(range(12))


#: head of the page's table -> a config that has it
HEADS = {
    'Mask R-CNN': '../projects/lab/configs/toy/mask-rcnn_shunted-toy_fpn',
    'RetinaNet': '../projects/lab/configs/toy/retinanet_shunted-toy_fpn',
    'UperNet': 'elsa_swin/elsa-swin-t_upernet_8xb2-160k_ade20k-512x512',
    'Semantic FPN': '../projects/lab/configs/toy/shunted-toy_fpn',
    'SegFormer': 'shunted/shunted-s_segformer_8xb2-160k_ade20k-512x512',
    'SETR': 'msf/msf-vit-s_setr-naive_8xb2-160k_ade20k-512x512',
    'classifier': '../projects/lab/configs/toy/elsa-swin-toy_in1k',
}


def class_numbers(node: object) -> set[int]:
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    own = {node['num_classes']} if isinstance(node, dict) and 'num_classes' in node else set()
    return own.union(*map(class_numbers, values))


@pytest.mark.parametrize('head', HEADS)
def test_heads(head, tmp_path):
    """What the page's table says for a head passes the checks, and sets the number of classes of all heads."""
    row = next(line for line in PAGE.splitlines() if line.startswith('| ') and head in line.split('|')[1])
    path = tmp_path / 'own.py'
    lines = f"_base_ = '{ROOT}/configs/{HEADS[head]}.py'", 'heads = dict(num_classes=7)', f'model = {row.split("`")[1]}'
    path.write_text('\n'.join(lines))
    options = dict(val_evaluator=dict(topk=(1,))) if head == 'classifier' else {}
    assert class_numbers(load_config(path, options).model) == {7}


@pytest.mark.slow
@pytest.mark.parametrize('command', [each for each in COMMANDS if 'tools/' in each and 'convert' not in each])
def test_commands(command, clone):
    """The commands of the page run one after the other and write to the folders in their options."""
    if not (clone / 'data' / 'own' / 'train.txt').exists():
        test_data_is_split_and_translated(clone)
    if '--resume' in command:
        (clone / 'work_dirs' / 'detector' / 'epoch_2.pth').unlink()  # as if it had been interrupted
    bash(command, clone)
    for option, folder in re.findall(r'(--out|--show-dir|--work-dir) (\S+)', command):
        kind = {'--work-dir': '*.pth'}.get(option, '*.[jp][pn]g')
        assert list((clone / folder).rglob(kind)), folder
    if '--resume' in command:
        assert (clone / 'work_dirs' / 'detector' / 'epoch_2.pth').exists()
