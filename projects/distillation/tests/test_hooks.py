"""What a distillation shows and writes while it trains."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.model import BaseModel
from torch import nn

pytest.importorskip('mmpretrain')

from mmengine.registry import MODELS
from mmpretrain.structures import DataSample

from mmattn.errors import InputError
from mmattn.weights import CheckpointError, read_file
from mmattn_distillation.hooks import (
    LINE,
    BackboneCheckpointHook,
    FeatureImagesHook,
    TeacherSimilarity,
    component_sheet,
    components,
)
from mmguard.runs import checkpoints
from projects.mmguard.tests.runs.small_training import train

ARCH = dict(embed_dim=8, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), group_width=4)
STUDENT = dict(type='ELSASwin', arch=ARCH, out_indices=(1, 2, 3), drop_path_rate=0.3, init_cfg=None)
TEACHER = dict(type='ELSASwin', arch=dict(ARCH, embed_dim=16), out_indices=(2,), init_cfg=None)
PREPROCESSOR = dict(type='ViewPreprocessor')


# ---- TeacherSimilarity


def similarity(cosines):
    metric = TeacherSimilarity()
    metric.process(None, [dict(cosines=each) for each in cosines])
    return metric.evaluate(len(cosines))


def test_similarity_is_the_mean_over_images():
    found = similarity([{'stage1': 0.2, 'global': 0.6}, {'stage1': 0.4, 'global': 1.0}])
    assert found == pytest.approx({'similarity/stage1': 0.3, 'similarity/global': 0.8, 'similarity/mean': 0.55})


def fake_runner(folder):
    config = SimpleNamespace(pretty_text='')
    return SimpleNamespace(model=Student(), work_dir=str(folder), epoch=0, max_epochs=1, hooks=[], cfg=config)


# ---- pictures


def test_components_by_hand():
    """Red is the direction of most variance, green the next one. A third one has no variance here, and is grey."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 9), indexing='ij')
    target = torch.stack([torch.full_like(x, 7), x * 3, -y])
    changed = [target * torch.tensor(factors).view(3, 1, 1) for factors in ((1, -1, 1), (1, 0.5, 1))]
    teacher, same, opposite, half = components(target, target, *changed)
    assert teacher.dtype == np.uint8 and teacher.shape == (5, 9, 3)
    np.testing.assert_allclose(teacher[0, :, 0], np.linspace(0, 255, 9).round(), atol=1)
    np.testing.assert_allclose(teacher[:, 3, 1], np.linspace(255, 0, 5).round(), atol=1)
    assert (teacher[..., 2] == 128).all()
    np.testing.assert_array_equal(same, teacher)
    np.testing.assert_allclose(opposite[..., 0], teacher[:, ::-1, 0], atol=1)
    np.testing.assert_allclose(opposite[..., 1:], teacher[..., 1:], atol=1)
    np.testing.assert_allclose(half[0, :, 0], np.linspace(64, 191, 9), atol=1)


def test_sheet():
    """Per teacher a row: the image in its colours and proportions, then maps. Equal features have equal pictures."""
    image = torch.tensor([250.0, 20.0, 0.0]).view(3, 1, 1).expand(3, 20, 40)
    target, other = torch.randn(2, 1, 8, 4, 6)
    parts = dict(stage1=(target, target), stage2=(other, target), **{'global': (torch.ones(1, 8), torch.ones(1, 8))})
    sheet = component_sheet(image, [parts, parts], ['vit', 'swin'], side=60)
    tiles = [[tile[LINE : LINE + 30, :60] for tile in np.split(row, 4, 1)] for row in np.split(sheet, 2)]
    for row in tiles:
        assert (row[0] == [250, 20, 0]).all()
        assert (row[1] == row[2]).all() and (row[1] != row[3]).any()
    assert (tiles[0][1] == tiles[1][1]).all()
    assert len(np.unique(tiles[0][1].reshape(-1, 3), axis=0)) <= 4 * 6  # Positions are not blended.
    titles = [row[:LINE] for row in np.split(sheet, 2)]
    assert (titles[0][:, : sheet.shape[1] // 4] == titles[1][:, : sheet.shape[1] // 4]).all()  # of the image
    assert (titles[0] != titles[1]).any()  # of the teacher


class Pictures(BaseDataset):
    """Eight images: the first is red, the others are noise."""

    def load_data_list(self):
        pixels = torch.randint(0, 256, (8, 3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        pixels[0] = torch.tensor([0, 0, 255]).view(3, 1, 1)  # BGR
        return [dict(pixels=each) for each in pixels]

    def prepare_data(self, index):
        return dict(inputs=self.get_data_info(index)['pixels'], data_samples=DataSample())


def distiller():
    return MODELS.build(
        dict(type='FeatureDistiller', backbone=STUDENT, teacher=dict(model=TEACHER), data_preprocessor=PREPROCESSOR)
    )


def distil(folder, *hooks, epochs=2):
    """Train a narrow student, validated after each epoch; its weights."""
    loader = dict(
        batch_size=4,
        num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False),
        dataset=Pictures(serialize_data=False),
    )
    torch.manual_seed(0)
    return train(
        folder,
        by_epoch=True,
        model=distiller(),
        train_dataloader=loader,
        train_cfg=dict(by_epoch=True, max_epochs=epochs, val_interval=1),
        val_dataloader=dict(loader, batch_size=2),
        val_evaluator=[TeacherSimilarity()],
        val_cfg=dict(),
        visualizer=dict(
            type='Visualizer', vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')]
        ),
        custom_hooks=list(hooks),
        seed=0,
    )


def test_images_of_a_training(tmp_path):
    """The first images of each validation are in the work folder and in TensorBoard, with the right colours, beside
    the similarities. The training is the same with and without them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    weights = distil(tmp_path / 'with', FeatureImagesHook(images=3))
    (folder,) = (tmp_path / 'with').glob('*/vis_data')
    found = {path.name: cv2.imread(str(path)) for path in (folder / 'vis_image').iterdir()}
    assert set(found) == {f'features_{i}_{epoch}.png' for i in (1, 2, 3) for epoch in (1, 2)}
    assert (found['features_1_1.png'][LINE : LINE + 224, :224] == [0, 0, 255]).all()
    assert (found['features_2_1.png'] != found['features_2_2.png']).any()
    events = EventAccumulator(str(folder)).Reload()
    assert {'features_1', 'features_2', 'features_3'} == set(events.Tags()['images'])
    assert {f'similarity/{part}' for part in ('stage1', 'stage2', 'stage3', 'global', 'mean')} <= set(
        events.Tags()['scalars']
    )
    without = distil(tmp_path / 'without')
    assert all(torch.equal(value, without[name]) for name, value in weights.items())


# ---- backbone checkpoints


class Student(BaseModel):
    """Stands for a model with a backbone."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.projector = nn.Linear(1, 1)

    def forward(self, x, mode='tensor'):
        return dict(loss=self.projector(self.backbone(torch.stack(x))).square().mean())


def write(folder, *others, epochs=3, **settings):
    """Train :class:`Student`, with a checkpoint and a backbone of each epoch."""
    hooks = [dict(type='BackboneCheckpointHook', **settings), *others]
    train(folder, by_epoch=True, steps=4 * epochs, model=Student(), custom_hooks=hooks)


def written(folder):
    return sorted(path.name for path in folder.glob('*.pth*'))


def of_backbone(state, name='state_dict'):
    """The backbone's tensors in the state of a training."""
    return {key[9:]: value for key, value in state[name].items() if key.startswith('backbone.')}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_backbone_loads_strictly(tmp_path, request):
    """init_cfg takes the file into the same backbone to the bit, with the same outputs or more. Norms of outputs that
    the student does not have start untrained, as the log says. Another form of the backbone is refused."""
    weights = distil(tmp_path, BackboneCheckpointHook(), epochs=1)
    file = tmp_path / 'backbone_epoch_1.pth'
    log = request.getfixturevalue('log')  # of the logger that the training has made
    contents = read_file(file)
    assert same(contents['state_dict'], of_backbone(dict(state_dict=weights)))
    assert contents['meta']['epoch'] == 1 and set(contents) == {'meta', 'state_dict'}

    def load(**changes):
        settings = dict(STUDENT, init_cfg=dict(type='Pretrained', checkpoint=str(file)))
        backbone = MODELS.build({**settings, **changes})
        backbone.init_weights()
        return backbone.state_dict()

    assert same(load(), contents['state_dict'])
    assert 'untrained' not in '\n'.join(log)
    more = load(out_indices=(0, 1, 2, 3))
    assert 'ELSASwin: start untrained: norm0.weight, norm0.bias' in log
    assert (more.pop('norm0.weight') == 1).all() and (more.pop('norm0.bias') == 0).all()
    assert same(more, contents['state_dict'])
    with pytest.raises(CheckpointError, match='missing: layers.0.blocks.1'):
        load(arch=dict(ARCH, depths=(2, 1, 1, 1)))
    with pytest.raises(CheckpointError, match='trained with dilation=1'):
        load(dilation=2)
    for name in ('norm2.weight', 'norm2.bias'):
        del contents['state_dict'][name]
    torch.save(contents, file)
    with pytest.raises(CheckpointError, match='2 missing: norm2.weight, norm2.bias'):
        load(out_indices=(0, 1, 2, 3))


@pytest.mark.parametrize(
    'settings, kept', [({}, [2, 3, 4]), (dict(max_keep_ckpts=1), [4]), (dict(interval=3, max_keep_ckpts=-1), [3, 4])]
)
def test_number_of_backbones(tmp_path, settings, kept):
    """max_keep_ckpts is the number of files at the end; the last epoch has one. Files of other names stay."""
    others = {'my_backbone_epoch_4.pth', 'backbone_epoch_1.pth.txt', 'backbone_epoch_last.txt'}
    for name in others:
        (tmp_path / name).touch()
    write(tmp_path, epochs=4, **settings)
    assert {path.name for path in tmp_path.glob('*backbone*')} == others | {f'backbone_epoch_{i}.pth' for i in kept}


def test_later_backbones_stay(tmp_path):
    """A training that resumes from an older state comes to them again: none of them counts."""
    (tmp_path / 'backbone_epoch_5.pth').touch()
    BackboneCheckpointHook(max_keep_ckpts=1).after_train_epoch(fake_runner(tmp_path))
    assert written(tmp_path) == ['backbone_epoch_1.pth', 'backbone_epoch_5.pth']


def test_full_disk(tmp_path, monkeypatch):
    """If a backbone does not fit on the disk, the error says so and the older files stay whole. The resumed training
    writes the file first that is missing, and then continues."""
    monkeypatch.setattr(checkpoints, 'token_hex', lambda count: 'part')
    (tmp_path / 'backbone_epoch_2.pth.part.part').symlink_to('/dev/full')
    message = r'backbone_epoch_2.pth cannot be written \(No space left on device\); .* --resume'
    with pytest.raises(CheckpointError, match=message):
        write(tmp_path)
    assert written(tmp_path) == ['backbone_epoch_1.pth', 'epoch_1.pth', 'epoch_2.pth']
    read_file(tmp_path / 'backbone_epoch_1.pth')
    write(tmp_path)
    assert written(tmp_path) == [f'{kind}epoch_{i}.pth' for kind in ('backbone_', '') for i in (1, 2, 3)]
    second = read_file(tmp_path / 'epoch_2.pth')
    assert same(read_file(tmp_path / 'backbone_epoch_2.pth')['state_dict'], of_backbone(second))


def test_averaged_backbone(tmp_path):
    """With EMAHook, the file has the averaged weights, which are those that are validated."""
    write(tmp_path, dict(type='EMAHook', momentum=0.5), epochs=1)
    state = read_file(tmp_path / 'epoch_1.pth')
    averaged = read_file(tmp_path / 'backbone_epoch_1.pth')['state_dict']
    assert same(averaged, of_backbone(state))
    trained = of_backbone({'ema': {key[7:]: value for key, value in state['ema_state_dict'].items()}}, 'ema')
    assert not same(averaged, trained)


def test_refused(tmp_path):
    """Hooks and metrics of another model, and wrong numbers, end before the first step."""
    hook = dict(type='BackboneCheckpointHook')
    with pytest.raises(InputError, match='the training is by steps: take it out of custom_hooks'):
        train(tmp_path / 'steps', model=Student(), custom_hooks=[hook])
    with pytest.raises(InputError, match='Model has no backbone'):
        train(tmp_path / 'none', by_epoch=True, custom_hooks=[hook])
    with pytest.raises(InputError, match='TeacherSimilarity is for FeatureDistiller'):
        TeacherSimilarity().process(None, [dict(pred_score=1)])
    images = FeatureImagesHook()
    images.before_val_epoch(None)
    with pytest.raises(InputError, match='FeatureImagesHook is for FeatureDistiller'):
        images.after_val_iter(SimpleNamespace(model=Student()), 0, dict(inputs=[]))
    for cls, name in ((FeatureImagesHook, 'images'), (BackboneCheckpointHook, 'max_keep_ckpts')):
        with pytest.raises(ValueError, match=f'{name} must be a whole number'):
            cls(**{name: 0})
