"""A frozen backbone computes each view once, and the configs that have one build."""

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope

from mmattn_lab import KeptMaps
from mmguard.errors import InputError
from mmguard.runs.rows import read_row
from tests import ROOT

TINY = dict(
    type='mmattn.DINOViT',
    arch=dict(embed_dim=16, depth=2, num_heads=2, version=2, registers=0, swiglu=0),
    out_indices=(0, 1),
    drop_path_rate=0.5,
)
FOLDER = ROOT / 'projects' / 'lab' / 'configs' / 'real' / 'foundation'


def test_maps_are_kept(tmp_path):
    """The maps are the backbone's, in training too. Another image, weight or setting has a file of its own, and a known
    one is not computed again."""
    kept = KeptMaps(TINY, tmp_path).train()
    images = torch.rand(2, 3, 28, 42)
    expected = [kept.backbone(image) for image in images.split(1)]
    for _ in range(2):
        maps = kept(images)
        assert all(torch.equal(one, torch.cat(both)) for one, both in zip(maps, zip(*expected)))
        assert not any(one.requires_grad for one in maps)
    assert len([*tmp_path.rglob('*.pt')]) == 2
    same = KeptMaps(TINY, tmp_path)
    same.load_state_dict(kept.state_dict())
    same.backbone.forward = None  # It would fail.
    assert torch.equal(same(images)[1], maps[1])
    for other in (KeptMaps(TINY, tmp_path, bfloat16=True), KeptMaps(dict(TINY, norm_eps=0.1), tmp_path)):
        other.load_state_dict(kept.state_dict())
        assert not torch.equal(other(images)[1], maps[1])
    with torch.no_grad():
        kept.backbone.norm.bias += 1
    assert torch.allclose(kept(images)[1], maps[1] + 1, atol=1e-5)


def test_a_broken_file(tmp_path):
    """One sentence names it."""
    kept, images = KeptMaps(TINY, tmp_path), torch.rand(1, 3, 14, 14)
    kept(images)
    [file] = tmp_path.rglob('*.pt')
    file.write_bytes(b'')
    with pytest.raises(InputError, match=f'{file.name} cannot be read: remove it'):
        kept(images)


@pytest.mark.parametrize(
    'case',
    [(path, row) for path in sorted(FOLDER.glob('*.py')) for row in read_row(path).rows],
    ids=lambda case: f'{case[0].stem} {case[1]}',
)
def test_configs(case):
    """Every row gives logits of its image on "meta", and only the row that is fine-tuned trains the ViT."""
    cfg = read_row(*case)
    width, height = cfg.input_size
    with torch.device('meta'), DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
        outs = model(torch.empty(1, 3, height, width), mode='tensor')
    trained = {name.split('.')[0] for name, one in model.named_parameters() if one.requires_grad}
    assert ('backbone' in trained) == (case[0].stem == 'fine-tuned')
    assert cfg.train_cfg.max_iters == 500
    if cfg.default_scope == 'mmseg':
        assert outs.shape[:2] == (1, 11)
    elif cfg.default_scope == 'mmpretrain':
        assert outs.shape == (1, 200)
    else:
        assert [one.shape[3] for one in outs[0]] == [width // stride for stride in (7, 14, 28, 56)]
