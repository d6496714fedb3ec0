import hashlib

import pytest
import torch

from mmattn import backbones
from mmattn.backbones import NAT, ELSASwin
from tests.tools.in_process import run_tool


def convert(source, target, *arguments):
    return run_tool('convert_weights', source, target, *arguments)


@pytest.mark.slow
def test_converted_release_loads(tmp_path, release):
    """The variant is recognised, the classifier left out, the sha256 true, and the file pretrained weights."""
    weights = release('elsa_swin_small_imagenet')
    torch.save({'state_dict': {f'module.{k}': v for k, v in weights.items()}}, tmp_path / 'released.pth')
    done = convert(tmp_path / 'released.pth', tmp_path / 'own.pth')
    assert done.returncode == 0, done.stderr
    assert "ELSASwin(arch='small')" in done.stdout and 'head.weight' in done.stdout
    assert hashlib.sha256((tmp_path / 'own.pth').read_bytes()).hexdigest() in done.stdout
    backbone = ELSASwin(arch='small', init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'own.pth')))
    backbone.init_weights()
    table = backbone.layers[3].blocks[1].attn.relative_position_bias_table
    assert torch.equal(table.t().flip(1), weights['layers.3.blocks.1.attn.rb'])


@pytest.mark.parametrize(
    'contents, message', [({'fc.weight': torch.ones(1)}, 'it is not a release of any backbone here')]
)
def test_other_files_are_refused(tmp_path, monkeypatch, contents, message):
    """Nothing is written for a file that is not a release. One variant of every backbone is tried."""
    for cls in (getattr(backbones, name) for name in backbones.__all__):
        monkeypatch.setattr(cls, 'arch_zoo', dict(list(cls.arch_zoo.items())[:1]))
    # Its cache would keep the single variant for the other tests.
    monkeypatch.setattr('mmattn.weights.strict._variants', lambda cls: tuple(cls.variants()))
    torch.save(contents, tmp_path / 'other.pth')
    done = convert(tmp_path / 'other.pth', tmp_path / 'own.pth')
    assert done.returncode == 1 and message in done.stderr and len(list(tmp_path.iterdir())) == 1


class Release:
    """An object that only code can build."""

    def __reduce__(self):
        return print, ('code was run',)


@pytest.mark.slow
def test_clean_files_are_made_of_trusted_ones(tmp_path, release):
    """Of a release with code in it, --trust-checkpoint makes a file that init_cfg takes."""
    torch.save({'model': release('elsa_swin_tiny_imagenet'), 'config': Release()}, tmp_path / 'c.pth')
    refused = convert(tmp_path / 'c.pth', tmp_path / 'own.pth')
    assert refused.returncode == 1 and '--trust-checkpoint reads it' in refused.stderr.splitlines()[-1]
    assert 'code was run' not in refused.stdout and not (tmp_path / 'own.pth').exists()
    assert 'code was run' in convert(tmp_path / 'c.pth', tmp_path / 'own.pth', '--trust-checkpoint').stdout
    pretrained = dict(type='Pretrained', checkpoint=str(tmp_path / 'own.pth'))
    for out_indices in ([0, 1, 2, 3], [3]):
        ELSASwin(out_indices=out_indices, init_cfg=pretrained).init_weights()


def test_settings_are_kept(tmp_path):
    """The file has the settings of the backbone; weights trained with others are not a release."""
    backbone = ELSASwin()
    own = dict(type='ELSASwin', **backbone.settings)
    torch.save({'state_dict': backbone.state_dict(), 'meta': {'mmattn': {'': own}}}, tmp_path / 'c.pth')
    assert convert(tmp_path / 'c.pth', tmp_path / 'own.pth').returncode == 0
    assert torch.load(tmp_path / 'own.pth', weights_only=True)['meta']['mmattn'] == {'': own}
    other = {'': dict(own, lam=1.0)}
    torch.save({'state_dict': backbone.state_dict(), 'meta': {'mmattn': other}}, tmp_path / 'c.pth')
    done = convert(tmp_path / 'c.pth', tmp_path / 'other.pth')
    assert done.returncode == 1 and 'were trained with lam=1.0 instead of 0.0' in done.stderr


def test_type_of_a_file_of_ours(tmp_path):
    """NAT and DiNAT have the same tensors: the note in the file says which it is."""
    backbone = NAT(arch='mini')
    own = dict(type='NAT', **backbone.settings)
    torch.save({'state_dict': backbone.state_dict(), 'meta': {'mmattn': {'': own}}}, tmp_path / 'c.pth')
    assert "is NAT(arch='mini')" in convert(tmp_path / 'c.pth', tmp_path / 'own.pth').stdout
    assert torch.load(tmp_path / 'own.pth', weights_only=True)['meta']['mmattn'] == {'': own}


@pytest.mark.slow
def test_classifier_of_two_names(tmp_path):
    """NAT and DiNAT have the same tensors: without a note, the file says neither. With the final norm, it starts a
    classifier as the release does, and a detector, too."""
    release = {
        name.replace('norm3.', 'norm.'): one for name, one in NAT(arch='mini', out_indices=[3]).state_dict().items()
    }
    release['norm.weight'] = torch.rand_like(release['norm.weight'])
    torch.save(release, tmp_path / 'c.pth')
    done = convert(tmp_path / 'c.pth', tmp_path / 'own.pth')
    assert "DiNAT(arch='mini') or NAT(arch='mini')\n" in done.stdout and 'left out  nothing' in done.stdout
    assert not {'backbone', 'mmattn'} & torch.load(tmp_path / 'own.pth', weights_only=True)['meta'].keys()
    pretrained = dict(type='Pretrained', checkpoint=str(tmp_path / 'own.pth'))
    classifier = NAT(arch='mini', out_indices=[3], init_cfg=pretrained)
    classifier.init_weights()
    assert torch.equal(classifier.norm3.weight, release['norm.weight'])
    NAT(arch='mini', init_cfg=pretrained).init_weights()
