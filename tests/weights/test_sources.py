import re

import pytest
import timm
import yaml

import mmattn.timm  # noqa: F401 (its models are in timm's registry, and have no weights of timm's)
from mmattn.weights import CheckpointError, check_source, sources
from mmattn.weights.sources import place_of
from tests import ROOT

ELSA, SHUNTED = 'https://github.com/damo-cv/ELSA', 'https://github.com/OliverRensu/Shunted-Transformer'


@pytest.mark.parametrize(
    'source, place',
    [
        ('timm:resnet50.a1_in1k', 'hf://timm/resnet50.a1_in1k'),
        ('hf-hub:timm/resnet50.a1_in1k@main/x.pth', 'hf://timm/resnet50.a1_in1k@main/x.pth'),
        ('timm:gcvit_tiny', 'https://github.com/rwightman/.*/gcvit_tiny_224_nvidia-ac783954.pth'),
        ('torchvision:Swin_T_Weights.IMAGENET1K_V1', 'https://download.pytorch.org/models/swin_t-704ceda3.pth'),
        ('torchvision://resnet50', 'https://download.pytorch.org/models/resnet50-.*.pth'),
        ('open-mmlab://detectron2/resnet50_caffe', 'https://.*/resnet50_msra-5891d200.pth'),
        ('openmmlab://resnext101_32x4d', 'https?://.*/resnext101_32x4d-a5af3160.pth'),
        ('work_dirs/a.pth', 'work_dirs/a.pth'),
    ],
)
def test_places(source, place):
    """A name is that of one file."""
    assert re.fullmatch(place, place_of(source))


@pytest.mark.parametrize(
    'source, message',
    [
        ('timm:swin_tiny_patch4_window7_22', 'no model .*did you mean swin_tiny_patch4_window7_224'),
        ('timm:resnet50.a1_in1', 'no weights resnet50.a1_in1: did you mean resnet50.a1_in1k'),
        ('timm:test_vit_alone', 'timm publishes no weights test_vit_alone: it has only the model'),
        ('timm:elsa_swin_tiny', f'no model elsa_swin_tiny: download it in a browser from {ELSA}'),
        ('torchvision:resnet50', 'name its weights, torchvision:ResNet50_Weights.IMAGENET1K_V1 or torchvision:'),
        ('torchvision:Swin_T_Weights.V1', 'no weights Swin_T_Weights.V1: did you mean Swin_T_Weights.IMAGENET1K_V1'),
        ('torchvision://resnet5', 'no weights resnet5, of torchvision://resnet5: did you mean resnet50'),
        ('open-mmlab://resnext101_32x4', 'OpenMMLab has no weights resnext101_32x4: did you mean resnext101_32x4d'),
        ('https://drive.google.com/file/d/1aB/view', f'Google Drive.*elsa_swin_tiny.pth.*{ELSA}.*{SHUNTED}'),
        ('checkpoints/elsa_swin_tiny.pth', f'no checkpoint checkpoints/elsa_swin_tiny.pth: download it .*{ELSA}'),
        ('shunted_tiny', f'no checkpoint shunted_tiny: download it .*{SHUNTED}.*ckpt_T.pth'),
        ('resnet50.a1_in1k', 'no checkpoint resnet50.a1_in1k: timm:resnet50.a1_in1k names the weights'),
        ('Swin_T_Weights.IMAGENET1K_V1', 'no checkpoint .*: torchvision:Swin_T_Weights.IMAGENET1K_V1 names'),
        ('resnet50.pth', 'no checkpoint resnet50.pth: put it there, or set init_cfg=None'),
        ('a' * 5000, 'no checkpoint a{300}: put it there'),
    ],
)
def test_unknown_sources(monkeypatch, source, message):
    """One sentence says what was meant, or where the file is."""
    monkeypatch.setitem(timm.models._registry._model_entrypoints, 'test_vit_alone', lambda: None)
    with pytest.raises(CheckpointError, match=message):
        check_source(source)


def test_formats_that_only_timm_reads(monkeypatch):
    """Without a copy on the Hub, weights of Google's in NumPy's format have to be converted; the sentence says how."""
    release = timm.get_pretrained_cfg('vit_tiny_patch16_224.augreg_in21k')
    release.hf_hub_id, release.url, release.custom_load = None, 'https://a/b.npz', True
    monkeypatch.setattr(timm, 'get_pretrained_cfg', lambda name: release)
    with pytest.raises(CheckpointError, match='in a format that only timm reads: write torch.save'):
        place_of('timm:vit_tiny_patch16_224.augreg_in21k')


def test_releases_are_those_of_the_metafiles():
    """Files on Google Drive and their pages, as the sentences name them, are those of the model zoo."""
    for family in ('elsa_swin', 'shunted'):
        models = yaml.safe_load((ROOT / 'configs' / family / 'metafile.yml').read_text())['Models']
        released = [model['Released Weights'] for model in models if 'Released Weights' in model]
        files, page = next(value for key, value in sources._releases().items() if family[:4] in key)
        assert files.split(', ') == [each['File'] for each in released if each['Source'] == page and 'File' in each]


def test_names_in_the_docs():
    """Every name of weights that the docs give is one of timm or torchvision."""
    texts = [path.read_text() for path in (*(ROOT / 'docs').glob('*.md'), *(ROOT / 'configs').glob('*/README.md'))]
    names = {name for text in texts for name in re.findall(r'\b(?:timm|torchvision):[\w/][\w./]*\w', text)}
    assert len(names) > 5
    for name in names - {'torchvision:resnet50'}:  # refused, and the docs say so
        check_source(name)


def test_names_of_files_on_the_hub(monkeypatch):
    """Where timm notes the name of a file, that file is meant and no other one."""
    release = timm.get_pretrained_cfg('resnet50.a1_in1k')
    release.hf_hub_filename = 'open_clip_pytorch_model.bin'
    monkeypatch.setattr(timm, 'get_pretrained_cfg', lambda name: release)
    assert place_of('timm:resnet50.a1_in1k') == 'hf://timm/resnet50.a1_in1k/open_clip_pytorch_model.bin'
