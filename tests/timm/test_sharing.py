"""Folders of the Hugging Face Hub: we and timm read again what is written, and config.json of others may say little."""

import json
import math
import shutil
import sys
import types
from pathlib import Path

import huggingface_hub
import pytest
import safetensors.torch
import timm
import torch
from torch import nn

from mmattn.backbones import NAT
from mmattn.errors import InputError
from mmattn.layers import TOKEN_MIXERS, SelfAttention
from mmattn.timm import TimmClassifier
from mmattn.weights import CheckpointError
from tests.timm.cases import images, small


@pytest.mark.parametrize(
    'name, arguments', [('msf_vit_tiny', dict(norm_eps=1e-3)), ('elsa_volo_d1', dict(img_size=32, global_pool='avg'))]
)
def test_folder_of_the_hub(tmp_path, name, arguments):
    """save_pretrained writes a model with its arguments. from_pretrained and timm read them."""
    model = small(name, num_classes=3, **arguments)
    model.save_pretrained(tmp_path, license='mit')
    x = images()
    for again in (
        TimmClassifier.from_pretrained(tmp_path),
        timm.create_model(f'local-dir:{tmp_path}', pretrained=True),
    ):
        assert type(again) is type(model) and torch.equal(again.eval()(x), model(x))
    assert not TimmClassifier.from_pretrained(tmp_path).training
    maps = TimmClassifier.from_pretrained(tmp_path, features_only=True)(x)
    torch.testing.assert_close(maps[-1], model.forward_intermediates(x, 1, intermediates_only=True)[-1])
    with pytest.raises(ValueError, match='img_size must be one side, or two equal ones, not'):
        small('elsa_volo_d1', img_size=(32, 64))


def test_card_and_faults_of_the_hub(tmp_path):
    """The card has settings and data; other settings, another model, and no config are told in a sentence."""
    model = small('msf_vit_tiny', num_classes=3, norm_eps=1e-3)
    folder = tmp_path / 'mine'
    with pytest.raises(InputError, match='give the license of the weights'):
        model.save_pretrained(folder)
    assert not folder.exists()
    model.save_pretrained(folder, license='MIT', data='own photos, CC BY 4.0')
    card = (folder / 'README.md').read_text()
    assert (
        '\nlicense: mit\n' in card
        and '# msf_vit_tiny' in card
        and 'norm_eps=0.001' in card
        and 'own photos, CC BY 4.0' in card
    )
    (folder / 'README.md').write_text('of my own')
    model.save_pretrained(folder, license='mit')
    assert (folder / 'README.md').read_text() == 'of my own'
    with pytest.raises(CheckpointError, match='were trained with norm_eps=0.001'):
        TimmClassifier.from_pretrained(folder, norm_eps=1e-5)
    (folder / 'config.json').write_text('{"architecture": "resnet50"}')
    with pytest.raises(CheckpointError, match='is of resnet50, which is no model of mmattn'):
        TimmClassifier.from_pretrained(folder)
    (folder / 'config.json').unlink()
    with pytest.raises(CheckpointError, match='mine has no config.json'):
        TimmClassifier.from_pretrained(folder)


def test_another_head_is_refused(tmp_path):
    """from_pretrained refuses weights with another classifier, or none, unless num_classes asks for a new one. A head
    of another kind of number is always refused."""
    model = small('nat_mini', num_classes=5)
    model.save_pretrained(tmp_path, license='mit')
    model.reset_classifier(7)
    safetensors.torch.save_file(model.state_dict(), tmp_path / 'model.safetensors')
    with pytest.raises(CheckpointError, match='has a classifier of 7 classes, and the model has 5'):
        TimmClassifier.from_pretrained(tmp_path)
    assert TimmClassifier.from_pretrained(tmp_path, num_classes=3).head.fc.out_features == 3
    tensors = dict(small('nat_mini', num_classes=5).state_dict())
    headless = {name: x for name, x in tensors.items() if not name.startswith('head.')}
    safetensors.torch.save_file(headless, tmp_path / 'model.safetensors')
    with pytest.raises(CheckpointError, match='model.safetensors has no head'):
        TimmClassifier.from_pretrained(tmp_path)
    tensors['head.fc.weight'] = tensors['head.fc.weight'].to(torch.int8)
    torch.save(tensors, tmp_path / 'whole_numbers.pth')
    with pytest.raises(
        CheckpointError, match=r'the head does not fit: tensors 1 of another kind: head.fc.weight \(.*int8'
    ):
        small('nat_mini', num_classes=5).load_pretrained(tmp_path / 'whole_numbers.pth')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder of the Hub, with a ViT."""
    path = tmp_path_factory.mktemp('hub') / 'mine'
    small('vit_frame_tiny', num_classes=3).save_pretrained(path, license='mit')
    return path


def changed(folder, tmp_path, **parts):
    """A copy of a folder with other entries in the parts of config.json."""
    copied = shutil.copytree(folder, tmp_path / 'changed')
    config = json.loads((copied / 'config.json').read_text())
    for part, entries in parts.items():
        config[part].update(entries)
    (copied / 'config.json').write_text(json.dumps(config))
    return copied


def both_ways(folder):
    """The functions that read a folder."""
    yield lambda: TimmClassifier.from_pretrained(folder)
    for arguments in (dict(pretrained=True), dict(features_only=True)):
        yield lambda arguments=arguments: timm.create_model(f'local-dir:{folder}', **arguments)


@pytest.mark.parametrize('kind', ['loud.function', 'mmattn.layers.loud.Gate'])
def test_config_json_runs_no_code(monkeypatch, tmp_path, folder, kind):
    """A name in config.json calls no function and imports no module, in any place of a token mixer."""
    package = tmp_path / 'loud'
    package.mkdir()
    run = 'import pathlib; pathlib.Path(__file__).with_name("ran").touch()'
    (package / '__init__.py').write_text(f'def function(**_):\n    {run}')
    (package / 'registry.py').write_text(run)
    monkeypatch.syspath_prepend(tmp_path)
    for number, attention in enumerate([dict(type=kind), [dict(type='ELSA'), dict(type=kind)]]):
        (tmp_path / str(number)).mkdir()
        for load in both_ways(changed(folder, tmp_path / str(number), model_args=dict(attention=attention))):
            with pytest.raises(CheckpointError, match='there is no token mixer|attention must be'):
                load()
    assert 'loud' not in sys.modules and not (package / 'ran').exists()


@pytest.mark.parametrize(
    'entries, message',
    [
        (dict(init_cfg=dict(type='Pretrained', checkpoint='a.pth')), 'model_args cannot set init_cfg'),
        (dict(norm_ep=1e-3), 'model_args cannot set norm_ep: did you mean norm_eps'),
        (dict(attention=dict(type='ELSA', table='https://a.b/c')), r"attention\['table'\] must be a word"),
        (dict(attention='ELSA'), 'describes no model that can be built: ValueError: attention must be'),
        (dict(arch=dict(embed_dim=16, depth=10**6, num_heads=2)), 'it has more than 1000 blocks'),
        (dict(arch=dict(embed_dim=10**6, depth=4, num_heads=2)), r'describes a model of \d+ numbers, more than .* has'),
        (dict(arch=dict(embed_dim=10**12, depth=4, num_heads=2)), 'must be a number up to 1000000, not 1000000000000'),
        (dict(attention=[[[[[[[[]]]]]]]]), 'has more entries or levels than a setting of a model'),
    ],
)
def test_model_args_of_a_file(tmp_path, folder, entries, message):
    """Data names no file and no code, and no model that does not fit into memory; each in one sentence."""
    with pytest.raises(CheckpointError, match=message) as error:
        TimmClassifier.from_pretrained(changed(folder, tmp_path, model_args=entries))
    assert '\n' not in str(error.value) and len(str(error.value)) < 700


@pytest.mark.parametrize(
    'entries, message',
    [
        (dict(url='https://a.b/c.pth'), 'pretrained_cfg cannot set url: the weights are those beside it'),
        (dict(inputsize=3), 'pretrained_cfg has no key inputsize: did you mean input_size'),
        (dict(input_size=[3, 224]), r'input_size must be like \(3, 224, 224\), not .3, 224.'),
        (dict(fixed_input_size='yes'), "fixed_input_size must be like False, not 'yes'"),
    ],
)
def test_pretrained_cfg_of_a_file(tmp_path, folder, entries, message):
    """It names no other weights. timm reads the file itself for local-dir: and hf-hub:."""
    for load in both_ways(changed(folder, tmp_path, pretrained_cfg=entries)):
        with pytest.raises(CheckpointError, match=message):
            load()


@pytest.mark.parametrize(
    'content', [b'{"architecture": "nat_', b'{}', b'[' * 100_000], ids=['cut short', 'no model', 'deep']
)
def test_broken_config_of_a_folder(tmp_path, content):
    (tmp_path / 'config.json').write_bytes(content)
    with pytest.raises(CheckpointError, match='config.json of .* cannot be read') as error:
        TimmClassifier.from_pretrained(tmp_path)
    assert '\n' not in str(error.value)


def test_own_token_mixer_in_a_folder(tmp_path):
    """A token mixer that the reader has registered is found by its name."""
    TOKEN_MIXERS.register_module('Mine', module=SelfAttention)
    try:
        model = small('vit_frame_tiny', num_classes=3, attention=dict(type='Mine'))
        model.save_pretrained(tmp_path, license='mit')
        x = images()
        assert torch.equal(TimmClassifier.from_pretrained(tmp_path)(x), model(x))
    finally:
        TOKEN_MIXERS.module_dict.pop('Mine')
    with pytest.raises(CheckpointError, match='there is no token mixer Mine; there are'):
        TimmClassifier.from_pretrained(tmp_path)


def test_hf_hub_is_read_strictly(monkeypatch, tmp_path):
    """timm.create_model with hf-hub: takes the weights beside config.json, of the same revision, by our reader."""
    small('nat_mini', num_classes=3).save_pretrained(tmp_path, license='mit')
    asked = []

    def download(*names, filename=None, **options):
        asked.append((names or (options['repo_id'],), filename, options.get('revision')))
        return str(tmp_path / (filename or names[1]))

    monkeypatch.setattr(huggingface_hub, 'get_hf_file_metadata', lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, 'hf_hub_download', download)
    monkeypatch.setattr('timm.models._hub.hf_hub_download', download)
    model = timm.create_model('hf-hub:OWNER/NAME@work/new', pretrained=True, num_classes=5)
    assert model.num_classes == 5 and asked[-1] == (('OWNER/NAME',), 'model.safetensors', 'work/new')
    tensors = safetensors.torch.load_file(tmp_path / 'model.safetensors')
    tensors['backbone.norm3.bias'][0] = math.nan
    safetensors.torch.save_file(tensors, tmp_path / 'model.safetensors')
    with pytest.raises(CheckpointError, match='has NaN in backbone.norm3.bias'):
        timm.create_model('hf-hub:OWNER/NAME', pretrained=True)


def test_weights_of_local_dir_are_checked(tmp_path, folder):
    """timm.create_model with local-dir: is as strict as from_pretrained, and takes no weights from elsewhere."""
    other = shutil.copytree(folder, tmp_path / 'other')
    small('vit_frame_tiny', num_classes=3, norm_eps=1e-3).save_pretrained(tmp_path / 'eps', license='mit')
    shutil.copy(tmp_path / 'eps' / 'model.safetensors', other)
    with pytest.raises(CheckpointError, match='were trained with norm_eps=0.001'):
        timm.create_model(f'local-dir:{other}', pretrained=True)
    assert timm.create_model(f'local-dir:{other}').num_classes == 3  # without weights
    (other / 'model.safetensors').unlink()
    with pytest.raises(CheckpointError, match='other has no weights: model.safetensors or'):
        timm.create_model(f'local-dir:{other}', pretrained=True)


def test_saved_folder_names_no_file(tmp_path):
    """A model that was built from weights somewhere is saved whole."""
    torch.save(small('nat_mini', num_classes=3).state_dict(), tmp_path / 'w.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'w.pth'))
    model = small('nat_mini', num_classes=3, init_cfg=init_cfg)
    model.reset_classifier(5, 'max')
    model.save_pretrained(tmp_path / 'ours', license='mit')
    timm.models.save_for_hf(model, tmp_path / 'theirs')
    (tmp_path / 'w.pth').unlink()
    x = images()
    for saved in ('ours', 'theirs'):
        assert str(tmp_path) not in (tmp_path / saved / 'config.json').read_text()
        for again in (
            TimmClassifier.from_pretrained(tmp_path / saved),
            timm.create_model(f'local-dir:{tmp_path / saved}', pretrained=True).eval(),
        ):
            assert torch.equal(again(x), model(x))


@pytest.mark.parametrize(
    'change, place',
    [
        (lambda model: model.prune_intermediate_layers([1]), 'backbone.norm'),
        (lambda model: setattr(model.backbone.norm3, 'eps', 0.1), 'backbone.norm3'),
    ],
)
def test_changed_models_are_not_saved(monkeypatch, tmp_path, change, place):
    """What config.json would not build is refused before anything is written, removed or made on the Hub."""
    model = small('nat_mini', num_classes=3)
    model.save_pretrained(tmp_path, license='mit')
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    change(model)
    monkeypatch.setattr('huggingface_hub.HfApi.create_repo', lambda *_, **__: pytest.fail('a repository is made'))
    for save in (model.save_pretrained, lambda _, **license: model.push_to_hub('OWNER/NAME', **license)):
        with pytest.raises(InputError, match=f'config.json builds a model that differs in .*{place}'):
            save(tmp_path, license='mit')
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_push_to_hub(monkeypatch):
    """It uploads what save_pretrained writes, as it is told."""
    api = huggingface_hub.HfApi
    upload = lambda _, folder_path, **options: dict(options, files={file.name for file in Path(folder_path).iterdir()})
    monkeypatch.setattr(api, 'create_repo', lambda _, name, **options: types.SimpleNamespace(repo_id=name, **options))
    monkeypatch.setattr(api, 'upload_folder', upload)
    found = small('nat_mini', num_classes=3).push_to_hub('OWNER/NAME', license='mit', branch='work', create_pr=True)
    files = {'model.safetensors', 'config.json', 'README.md'}
    assert found == dict(repo_id='OWNER/NAME', revision='work', create_pr=True, files=files)


def test_models_in_training_are_saved(tmp_path):
    """Rates of dropout and synchronised batch norms are no part of what is saved."""
    model = small('gsa_resnet38', num_classes=3, drop_rate=0.3, drop_path_rate=0.2)
    nn.SyncBatchNorm.convert_sync_batchnorm(model).save_pretrained(tmp_path, license='mit')
    assert TimmClassifier.from_pretrained(tmp_path).num_classes == 3


def test_model_that_json_cannot_describe(tmp_path):
    """A token mixer that was given as a class."""
    model = small('vit_frame_tiny', attention=dict(type=SelfAttention))
    with pytest.raises(InputError, match="config.json cannot describe the model: .*'attention' is not serializable"):
        model.save_pretrained(tmp_path / 'new', license='mit')
    assert not (tmp_path / 'new').exists()


def test_no_folder_and_no_name_of_the_hub():
    """A misspelt folder is not looked for on the Hub."""
    with pytest.raises(CheckpointError, match='there is no folder nowhere, and names on the Hub are OWNER/NAME'):
        TimmClassifier.from_pretrained('nowhere')


def test_what_cannot_be_saved_and_loaded(tmp_path):
    """Maps alone are timm's to make, and config.json is of a name of timm."""
    with pytest.raises(InputError, match='build it by timm.create_model'):
        TimmClassifier(NAT, num_classes=3, arch='mini').save_pretrained(tmp_path / 'direct', license='mit')
    with pytest.raises(ValueError, match='arch is missing'):
        TimmClassifier(NAT, num_classes=3)


def test_arguments_of_the_hub(monkeypatch, tmp_path):
    """Those of huggingface_hub's from_pretrained are obeyed. Others, and what a folder cannot obey, are refused."""
    small('nat_mini', num_classes=3).save_pretrained(tmp_path / 'inside', license='mit')
    asked = []

    def hf_hub_download(filename, **given):
        asked.append((filename, given))
        return str(tmp_path / filename)

    monkeypatch.setattr(huggingface_hub, 'get_hf_file_metadata', lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, 'hf_hub_download', hf_hub_download)
    options = dict(token='hf_1', cache_dir='there', force_download=True, local_files_only=False)
    TimmClassifier.from_pretrained('OWNER/NAME', revision='work/new', subfolder='inside', **options)
    expected = dict(options, repo_id='OWNER/NAME', revision='work/new')
    TimmClassifier.from_pretrained('hf-hub:OWNER/NAME@work%2Fnew', subfolder='inside', **options)
    assert asked == [(f'inside/{name}', expected) for name in ('config.json', 'model.safetensors')] * 2
    TimmClassifier.from_pretrained(tmp_path, subfolder='inside', token='hf_1', cache_dir='there', local_files_only=True)
    with pytest.raises(
        ValueError, match='from_pretrained does not take proxies, resume_download: of huggingface_hub it'
    ):
        TimmClassifier.from_pretrained('OWNER/NAME', proxies={}, resume_download=True)
    for setting in (dict(revision='main'), dict(force_download=True)):
        with pytest.raises(ValueError, match='is a folder: revision and force_download are for models on the Hub'):
            TimmClassifier.from_pretrained(tmp_path, subfolder='inside', **setting)
