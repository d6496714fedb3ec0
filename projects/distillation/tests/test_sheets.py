"""Sheets of tools/analyze.py for models that are distilled or grafted."""

from types import SimpleNamespace

import pytest
from mmengine.config import Config

from mmattn_distillation import sheets
from tests.tools.test_analyze import CLASSIFIER, numbers, photos, run  # noqa: F401, photos and run are fixtures

#: a distillation with images of any size
DISTILLATION = """
default_scope = 'mmpretrain'
custom_imports = dict(imports=['mmattn_distillation'])
arch = dict(embed_dim=8, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), group_width=4)
model = dict(
    type='FeatureDistiller',
    backbone=dict(type='ResNet', depth=18, out_indices=(1, 2, 3)),
    teacher=dict(model=dict(type='ELSASwin', arch=arch, out_indices=(2,), init_cfg=None)),
    data_preprocessor=dict(type='ViewPreprocessor'),
)
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=64, edge='short'),
    dict(type='PackViews'),
]
test_dataloader = dict(batch_size=1, dataset=dict(type='UnlabelledImages', data_root='absent', pipeline=test_pipeline))
test_cfg = dict()
test_evaluator = dict(type='TeacherSimilarity')
"""


@pytest.mark.slow
def test_distillation(run, photos, tmp_path):  # noqa: F811
    """The sheet of student and teacher has its cosines in the JSON, also of a student that is no backbone of mmattn.
    The images of the training need not be there. Models of another kind are refused."""
    config, image = tmp_path / 'distillation.py', photos / 'b.jpg'
    config.write_text(DISTILLATION)
    sentence, said = run(config, '--images', image, '--what', 'distillation')
    assert sentence is None and said.count('.png') == 1
    (teacher,) = numbers(tmp_path, 'b_distillation')['teachers']
    assert teacher['name'] == '' and list(teacher['cosines']) == ['stage1', 'stage2', 'stage3', 'global']
    assert all(-1 <= cosine <= 1 for cosine in teacher['cosines'].values())
    assert 'distillation is for FeatureDistiller' in run(CLASSIFIER, '--images', image, '--what', 'distillation')[0]


@pytest.mark.parametrize('measure, one, unit', [('operations', 1e9, 'billion multiply-adds'), ('time', 1e-3, 'ms')])
def test_unit_of_a_budget(monkeypatch, capsys, measure, one, unit):
    """A budget, and the costs that are printed beside it, are in 10^9 multiply-adds or in milliseconds."""
    part = dict(error=0.1, change=0.1)
    steps = [dict(part, blocks=[name], cost=cost * one) for name, cost in (('a', 3), ('b', 2))]
    found = dict(cost=4 * one, exchanges=steps, steps=steps)
    for name, value in dict(sensitivity=found, groups_of=None, settings_of=None).items():
        monkeypatch.setattr(sheets, name, lambda *_, value=value: value)
    cfg = Config(dict(backbone={}, teacher=dict(model={})))
    sheets.grafting_sheet(SimpleNamespace(blocks=[]), cfg, [None], measure, 3.5)
    assert f'1 steps: 3 instead of 4 {unit}, which keeps the budget' in capsys.readouterr().out
