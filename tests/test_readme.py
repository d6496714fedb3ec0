import re

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from tests import ROOT


def test_example_config_runs(tmp_path, monkeypatch, release):
    """The config of the README, as it stands there, with a checkpoint of the released layout: one training step's
    losses."""
    (example,) = re.findall(r'```python\n(.*?)```', (ROOT / 'README.md').read_text(), re.DOTALL)
    (tmp_path / 'config.py').write_text(example)
    monkeypatch.chdir(tmp_path)
    weights = release('elsa_swin_tiny_imagenet')
    torch.save({'state_dict': weights}, 'elsa_swin_tiny.pth')
    cfg = Config.fromfile('config.py')
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
    model.init_weights()
    assert torch.equal(model.backbone.patch_embed.proj.weight, weights['patch_embed.proj.weight'])

    from mmdet.testing import demo_mm_inputs

    inputs = demo_mm_inputs(1, [[3, 64, 96]], num_items=[2], with_mask=True)
    losses = model(**model.data_preprocessor(inputs, True), mode='loss')
    assert all(
        torch.as_tensor(loss).isfinite().all()
        for value in losses.values()
        for loss in (value if isinstance(value, list) else [value])
    )


def test_named_files_exist():
    """Paths that the README sends the reader to are there."""
    text = (ROOT / 'README.md').read_text()
    for path in re.findall(r'\b(?:tools|configs|requirements|tests)/[\w./-]+\.(?:py|sh|txt)', text):
        assert (ROOT / path).is_file(), path
    for config in re.findall(r'\| `([\w-]+_(?:in1k|coco|ade20k-512x512))`', text):
        assert list((ROOT / 'configs').glob(f'*/{config}.py')), config
