import re
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from mmengine.model.weight_init import PretrainedInit
from mmengine.registry import MODELS

from mmattn.errors import CheckpointError, InputError
from mmattn_distillation import teacher as module
from mmattn_distillation.teacher import Teacher

TINY = dict(
    type='ELSASwin',
    arch=dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), group_width=4),
    drop_path_rate=0.0,
)
#: a small model of timm for each way in which its features are read, with the side of its patch
MODELS_OF_TIMM = {
    'vit_small_patch14_reg4_dinov2': 14,
    'vit_tiny_patch16_dinov3_qkvb': 16,
    'convnext_atto': 32,
    'swin_tiny_patch4_window7_224': 32,
}


def images(height=64, width=96, batch=2):
    return 255 * torch.rand(batch, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize('name', MODELS_OF_TIMM)
def test_features_are_those_of_timm(name):
    """Map and vector are what timm's own forward_features gives, without prefix tokens, in the order of the image."""
    teacher, side = Teacher(name, pretrained=False), MODELS_OF_TIMM[name]
    height, width = 2 * side, 4 * side
    x = images(height, width)
    last, vector = teacher(x)
    own, model = teacher.model.pretrained_cfg, teacher.model
    mean, std = (torch.tensor(own[key]).view(1, 3, 1, 1) for key in ('mean', 'std'))
    with torch.no_grad():
        features = model.forward_features((x / 255 - mean) / std)
    if features.dim() == 3:
        wanted = features[:, 0]
        features = features[:, model.num_prefix_tokens :].unflatten(1, (2, 4)).permute(0, 3, 1, 2)
    else:
        features = features.permute(0, 3, 1, 2) if 'swin' in name else features
        wanted = features.mean((2, 3))
    assert last.shape == (2, teacher.channels, 2, 4) and not last.requires_grad
    torch.testing.assert_close(last, features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(vector, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['xcit_nano_12_p16_224', 'ghostnet_050'])
def test_models_of_timm_whose_map_is_all_that_they_give(name):
    """One with a class token that is not given beside its map, and one with a wider layer after its last map."""
    teacher = Teacher(name, pretrained=False)
    last, vector = teacher(images(64, 96))
    assert last.shape[:2] == (2, teacher.channels)
    torch.testing.assert_close(vector, last.mean((2, 3)))


def test_models_of_timm_that_take_one_size():
    """They are refused for another size in a sentence, and not with timm's traceback, and teach at their own size."""
    with pytest.raises(InputError, match='teacher mixer_s32_224 fails for images of 64 x 96 .*set its img_size'):
        Teacher('mixer_s32_224', pretrained=False)(images(64, 96))
    last, _ = Teacher('mixer_s32_224', pretrained=False, img_size=224)(images(64, 96))
    assert last.shape[2:] == (7, 7)


def test_image_becomes_whole_patches():
    """An image is resized to the nearest number of patches, or to img_size, in the order height, width."""
    assert Teacher('vit_small_patch14_reg4_dinov2', pretrained=False)(images(50, 100))[0].shape[2:] == (4, 7)
    teacher = Teacher('vit_tiny_patch16_dinov3_qkvb', pretrained=False, img_size=(32, 80))
    assert teacher(images(50, 100))[0].shape[2:] == (2, 5)


def test_backbone_as_teacher(tmp_path):
    """A backbone with a checkpoint of its own is a teacher: its last map, of normalised images."""
    backbone = MODELS.build(dict(TINY, out_indices=(3,)))
    torch.save(backbone.state_dict(), tmp_path / 'weights.pth')
    init_cfg = dict(type=PretrainedInit, checkpoint=str(tmp_path / 'weights.pth'))
    teacher = Teacher(dict(TINY, type=type(backbone), out_indices=(3,), init_cfg=init_cfg))
    assert teacher.name == type(backbone).__name__
    x = images()
    last, vector = teacher(x)
    mean, std = torch.tensor([[123.675, 116.28, 103.53], [58.395, 57.12, 57.375]]).view(2, 1, 3, 1, 1)
    with torch.no_grad():
        wanted = backbone.eval()((x - mean) / std)[0]
    torch.testing.assert_close(last, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(vector, last.mean((2, 3)))


def test_backbone_without_out_channels():
    """A backbone of MMDetection, which does not name its channels, is a teacher; it stays in evaluation mode."""
    teacher = Teacher(dict(type='mmdet.ResNet', depth=18)).train()
    assert teacher.channels == 512 and teacher(images())[0].shape == (2, 512, 2, 3)
    assert not any(part.training for part in teacher.model.modules())


@pytest.mark.parametrize('suffix', ['pth', 'safetensors'])
def test_weights_of_a_file(tmp_path, suffix):
    """Weights of timm are loaded strictly from both kinds of files; a classifier in them is left out."""
    name = 'convnext_atto'
    source = timm.create_model(name, num_classes=10)
    file = str(tmp_path / f'weights.{suffix}')
    (torch.save if suffix == 'pth' else safetensors.torch.save_file)(source.state_dict(), file)
    teacher = Teacher(name, checkpoint=file)
    given = source.state_dict()
    for key, value in teacher.model.state_dict().items():
        torch.testing.assert_close(value, given[key])


@pytest.mark.parametrize('kind', ['other model', 'code'])
def test_refuses_weights(tmp_path, kind):
    """A file without weights of the teacher ends in a sentence with its name, and no code in a file is run."""
    name, file = 'vit_tiny_patch16_dinov3_qkvb', tmp_path / 'weights.pth'
    if kind == 'code':
        torch.save(dict(timm.create_model(name).state_dict(), code=Runs(tmp_path / 'ran')), file)
    else:
        torch.save(timm.create_model('convnext_atto').state_dict(), file)
    with pytest.raises(CheckpointError, match=re.escape(str(file))):
        Teacher(name, checkpoint=str(file))
    assert not (tmp_path / 'ran').exists()


class Runs:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_without_network(monkeypatch):
    """Weights that timm cannot download end in a sentence that names their file's place and what to set."""

    def refused(*args, pretrained=False, **kwargs):
        if pretrained:
            raise OSError('no network')
        return create(*args, **kwargs)

    create = timm.create_model
    monkeypatch.setattr(module.timm, 'create_model', refused)
    with pytest.raises(InputError, match=r'no network.*timm/vit_base_patch16_dinov3\.lvd1689m.*set checkpoint'):
        Teacher('vit_base_patch16_dinov3')


@pytest.mark.parametrize(
    'arguments, named',
    [
        (dict(model='vit_bas_patch16_dinov3'), 'did you mean vit_base_patch16_dinov3'),
        (dict(model='convnext_atto', img_size=(1, 2, 3)), 'img_size'),
        (dict(model='convnext_atto', weight=0), 'weight'),
        (dict(model='convnext_atto', std=(58.395, 57.12, 57.375)), 'std .* three numbers from 0.0039 to 1'),
        (dict(model='convnext_atto.d2_in1'), r'no weights convnext_atto.d2_in1: did you mean convnext_atto\.d2_in1k'),
        (dict(model=TINY, checkpoint='a.pth'), 'init_cfg'),
        (dict(model=dict(type='mmpretrain.VisionTransformer', arch='deit-tiny')), 'VisionTransformer'),
    ],
)
def test_refuses_arguments(arguments, named):
    """A wrong argument is named. A backbone that returns class tokens cannot be a teacher."""
    with pytest.raises(InputError, match=named):
        Teacher(**arguments)


def cached_teacher(folder, **settings):
    torch.manual_seed(0)
    return Teacher('vit_tiny_patch16_dinov3_qkvb', pretrained=False, cache=str(folder), **settings)


def test_cache(tmp_path, monkeypatch):
    """Features of a key are computed once, are the same to the bit each time, and are near the exact ones."""
    teacher, x, keys = cached_teacher(tmp_path), images(), ['aa1', 'bb2']
    first = teacher(x, keys)
    torch.testing.assert_close(first, teacher(x), rtol=1e-2, atol=1e-2)
    monkeypatch.setattr(teacher, '_features', lambda x: pytest.fail('computed again'))
    for one, other in zip(first, teacher(torch.zeros_like(x), keys)):
        assert torch.equal(one, other)


def test_cache_of_a_part(tmp_path):
    """A batch may have views of which some are in the cache."""
    teacher, x = cached_teacher(tmp_path), images(batch=3)
    whole = teacher(x, ['a', 'b', 'c'])
    (teacher.cache / 'b' / 'b.features').unlink()
    for one, other in zip(whole, teacher(x, ['a', 'b', 'c'])):
        assert torch.equal(one, other)


def test_cache_belongs_to_weights_and_settings(tmp_path):
    """Other weights, another size of the image, and settings of a backbone that no tensor shows have another place in
    the folder."""
    one, two = cached_teacher(tmp_path).cache, cached_teacher(tmp_path, img_size=32).cache
    three = Teacher('vit_tiny_patch16_dinov3_qkvb', pretrained=False, cache=str(tmp_path)).cache
    assert len({one, two, three}) == 3 and one == cached_teacher(tmp_path).cache

    def resnet(**settings):
        torch.manual_seed(0)
        return Teacher(dict(type='mmdet.ResNet', depth=18, **settings), cache=str(tmp_path))

    plain, strided = resnet(), resnet(strides=(1, 2, 2, 1))
    assert plain.targets['weights'] == strided.targets['weights'] and plain.cache != strided.cache


def damage(file, kind, other):
    content = file.read_bytes()
    if kind == 'other view':
        file.write_bytes(other.read_bytes())
    elif kind == 'NaN':
        tensors = dict(map=torch.full((192, 4, 6), torch.nan), vector=torch.zeros(192))
        file.write_bytes(content[:32] + safetensors.torch.save(tensors))
    elif kind == 'empty':
        file.write_bytes(b'')
    else:
        at = int(len(content) * kind)
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


@pytest.mark.parametrize('kind', [0.5, 'NaN', 'other view'])
def test_damaged_cache(tmp_path, monkeypatch, kind):
    """A file of the cache that is not as it was written for this view is made again, and the log says so."""
    lines = []
    monkeypatch.setattr(module, 'warn', lines.append)
    teacher, x = cached_teacher(tmp_path), images(batch=2)
    whole = teacher(x, ['a', 'b'])
    one, two = (teacher.cache / key / f'{key}.features' for key in 'ab')
    damage(one, kind, two)
    for _ in range(2):
        for before, after in zip(whole, teacher(x, ['a', 'b'])):
            torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-3)
    assert lines == [f'{one} in the cache of the teacher is made again: it is damaged, or of another view']


def test_large_features_are_kept(tmp_path, monkeypatch):
    """Features above the range of float16 come back from the cache as they are, beside others in a batch."""
    teacher, x = cached_teacher(tmp_path), images(batch=2)
    features = teacher._features
    scale = torch.tensor([1.0, 1e6])
    monkeypatch.setattr(
        teacher, '_features', lambda x: (features(x)[0] * scale.view(2, 1, 1, 1), features(x)[1] * scale.view(2, 1))
    )
    first, (last, vector) = teacher(x, ['a', 'b']), teacher._features(x)
    assert last.abs().max() > 65504 and torch.equal(first[0][1], last[1]) and torch.equal(first[1][1], vector[1])
    assert all(torch.equal(one, other) for one, other in zip(first, teacher(x, ['a', 'b'])))


def test_features_that_are_not_finite(tmp_path):
    """A teacher that gives NaN is named at once, and nothing of it is kept."""
    teacher = cached_teacher(tmp_path)
    teacher.model.norm.bias[0] = torch.nan
    for keys in (['a', 'b'], None):
        with pytest.raises(InputError, match='teacher vit_tiny.* gives NaN or infinite features for 2 of 2 images'):
            teacher(images(), keys)
    assert not list(tmp_path.rglob('*.features'))
