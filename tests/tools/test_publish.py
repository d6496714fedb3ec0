"""tools/publish.py: what it writes is read as weights, with the settings that tensors do not show."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from safetensors.torch import load_file

from mmattn.backbones import GSAResNet
from mmattn.runs.publishing import halved, publish
from mmattn.weights import CheckpointError, read_file
from tests.tools.in_process import NO_WORKERS, run_tool

CONFIG = 'configs/toy/elsa-swin-toy_in1k.py'


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """The checkpoint of a classifier after one epoch of a few toy images."""
    folder = tmp_path_factory.mktemp('publish')
    assert run_tool('dev/make_toy_data', folder / 'toy', '--train', 4, '--val', 2).returncode == 0
    options = ['train_cfg.max_epochs=1', 'train_dataloader.batch_size=2', *NO_WORKERS]
    environment = dict(IMAGENET_ROOT=f'{folder}/toy/imagenet', CUDA_VISIBLE_DEVICES='')
    done = run_tool('train', CONFIG, '--work-dir', folder / 'work', '--cfg-options', *options, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / 'work' / 'epoch_1.pth'


@pytest.mark.slow
def test_published_weights_load(trained, tmp_path):
    """init_cfg takes them. Matrices are rounded to half precision, and a backbone with other settings refuses them."""
    target = tmp_path / 'elsa'
    done = run_tool('publish', CONFIG, trained, target, '--figures', 'top-1=5.0', '--data', 'toy images')
    assert done.returncode == 0, done.stderr
    settings = Config.fromfile(target / 'config.py').model.backbone.to_dict()
    start = dict(type='Pretrained', checkpoint=str(target / 'model.safetensors'))
    backbone = MODELS.build(dict(settings, init_cfg=start))
    backbone.init_weights()
    given = read_file(trained)['state_dict']
    name = 'layers.0.blocks.0.mlp.fc1.weight'
    assert torch.equal(backbone.state_dict()[name], given[f'backbone.{name}'].half().float())
    assert load_file(target / 'model.safetensors')['backbone.norm3.weight'].dtype == torch.float32
    with pytest.raises(CheckpointError, match='dilation'):
        MODELS.build(dict(settings, dilation=2, init_cfg=start)).init_weights()
    assert 'work_dir' not in Config.fromfile(target / 'config.py')  # as this machine would run it
    card = (target / 'README.md').read_text()
    assert '| top-1 |' in card and '| 5.0 |' in card and 'Data: toy images.' in card


def test_halved():
    """A matrix stays as it is if it has a value beyond the range of half precision. Tied weights can be written."""
    assert halved(torch.full((2, 2), 0.1)).dtype == torch.float16
    large = torch.full((2, 2), 7e4)
    assert torch.equal(halved(large), large) and halved(large).data_ptr() != large.data_ptr()


@pytest.mark.parametrize(
    ('figures', 'contents', 'message'),
    [
        (['top-1'], {}, '--figures must be NAME=VALUE, not top-1'),
        (['top-1=5'], {'state_dict': {'a': torch.ones(1)}}, 'it is not a checkpoint of a training with mmattn'),
    ],
)
def test_refused(tmp_path, figures, contents, message):
    """Nothing is written for a figure without a value, or a checkpoint whose settings nobody knows."""
    torch.save(contents, tmp_path / 'c.pth')
    done = run_tool('publish', CONFIG, tmp_path / 'c.pth', tmp_path / 'out', '--figures', *figures, '--data', 'toy')
    assert done.returncode == 1 and message in done.stderr and not (tmp_path / 'out').exists()


@pytest.fixture
def resnet(tmp_path):
    """The config of a small backbone with batch norms, the backbone, and its checkpoint."""
    depth = dict(depths=(1, 1, 1, 1), stem_channels=8, base_channels=16, expansion=4)
    settings = dict(depth=depth, gsa_stages=(3,), num_heads=2, img_size=64)
    backbone = GSAResNet(**settings)
    weights = {f'backbone.{name}': value for name, value in backbone.state_dict().items()}
    torch.save(dict(state_dict=weights, meta=dict(mmattn=dict(backbone=backbone.settings_note))), tmp_path / 'c.pth')
    return Config(dict(model=dict(backbone=dict(settings, type='GSAResNet')))), backbone, tmp_path / 'c.pth'


def test_parameters_of_the_card(resnet, tmp_path):
    """Statistics of batch norms are no parameters. Whoever may read the card may read the weights."""
    cfg, backbone, checkpoint = resnet
    publish(cfg, 'name', checkpoint, tmp_path / 'out', {}, 'none')
    assert len({file.stat().st_mode for file in (tmp_path / 'out').iterdir()}) == 1
    parameters = sum(parameter.numel() for parameter in backbone.parameters())
    assert f'| {parameters / 1e6:.2f} |' in (tmp_path / 'out' / 'README.md').read_text()


@pytest.mark.parametrize('change', [dict(gsa_stages=()), dict(gsa_stages=(2, 3)), dict(beyond='stretch')])
def test_checkpoint_of_another_config(resnet, tmp_path, change):
    """As with the row of a config that was not named: the card would have settings that refuse the weights."""
    cfg, _, checkpoint = resnet
    cfg.model.backbone.update(change)
    with pytest.raises(CheckpointError):
        publish(cfg, 'name', checkpoint, tmp_path / 'out', {}, 'none')
    assert not (tmp_path / 'out').exists()
