"""VOLO's classifier against timm's, and its loss with token labels and MixToken against plain loops."""

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmattn.errors import InputError

pytest.importorskip('mmpretrain')

from mmpretrain.structures import DataSample  # noqa: E402

from mmattn.classification import TokenLabelClassifier, VOLOHead  # noqa: E402
from mmattn.classification import volo as volo_module  # noqa: E402

VOLO = None


def classifier(arch, num_classes, **kwargs):
    settings = kwargs.pop('backbone', {})
    head = dict(
        type='VOLOHead',
        num_classes=num_classes,
        in_channels=2 * arch['embed_dim'],
        num_heads=arch['num_heads'][1],
        mlp_ratio=arch['mlp_ratio'],
    )
    backbone = dict(type='ELSAVOLO', arch=arch, attention=VOLO, out_indices=(3,), **settings)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        return MODELS.build(dict(dict(type='ImageClassifier', backbone=backbone, head=head), **kwargs))


@pytest.mark.parametrize('whole', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_logits_are_timms(whole):
    """A VOLO, the whole D1 too, with the weights of timm's, under timm's names; no bias and no norm has its initial
    value."""
    sizes = dict(layers=(1, 1, 2, 1), embed_dims=(8, 16, 16, 16), num_heads=(2, 4, 4, 4), stem_hidden_dim=8)
    side = 224 if whole else 64
    reference = timm.create_model('volo_d1_224') if whole else timm.models.VOLO(**sizes, mlp_ratio=3, img_size=side)
    reference.eval()
    for parameter in reference.parameters():
        nn.init.normal_(parameter, 1 if parameter.dim() == 1 and parameter.std() == 0 else 0, 0.05)
    small = dict(embed_dim=8, depths=(1, 1, 2, 1), num_heads=(2, 4), stem_dim=8, mlp_ratio=3)
    d1 = dict(embed_dim=192, depths=(4, 4, 8, 2), num_heads=(6, 12), stem_dim=64, mlp_ratio=3)
    model = classifier(d1 if whole else small, 1000, backbone=dict(img_size=side)).eval()
    model.load_state_dict(reference.state_dict())
    x = torch.randn(1, 3, side, side)
    with torch.no_grad():
        expected = reference(x)
        assert expected.std() > 0.1
        torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)


def test_head():
    """A map that is not square; the token logits keep its shape, and half their maximum is added to the class's."""
    head = VOLOHead(5, 8, num_heads=2).eval()
    nn.init.normal_(head.aux_head.weight)
    x = torch.randn(2, 8, 3, 4)
    of_class, of_tokens = head.dense_logits((x,))
    assert of_tokens.shape == (2, 5, 3, 4)
    turned = head.dense_logits((x.flip(3),))  # class attention has no positions
    torch.testing.assert_close(turned[0], of_class)
    torch.testing.assert_close(turned[1], of_tokens.flip(3))
    torch.testing.assert_close(head((x,)), of_class + 0.5 * of_tokens.flatten(2).max(2).values)
    for wrong, sentence in (
        (dict(num_heads=3), 'num_heads 3 does not divide the 8 channels'),
        (dict(mlp_ratio=float('nan')), 'mlp_ratio must make at least 1 of 8 channels, not nan'),
    ):
        with pytest.raises(ValueError, match=sentence):
            VOLOHead(5, 8, **{**dict(num_heads=2), **wrong})


class Recording(nn.Module):
    """A backbone and a head in one: means of 16 x 16 pixels are token logits, their mean the class's."""

    def forward(self, x, box):
        self.box = box
        return (volo_module.swapped(F.avg_pool2d(x, 16), box),)

    def dense_logits(self, feats):
        return feats[0].mean((2, 3)), feats[0]


class Doubling(nn.Module):
    """A neck."""

    def forward(self, feats):
        return tuple(2 * x for x in feats)


def samples(count, classes):
    """Label maps of 4 x 4 places with 3 classes each, of which all are in the crop, the whole image."""
    found = []
    for index in range(count):
        numbers = torch.stack([torch.randperm(classes)[:3] for _ in range(16)], 1).view(3, 4, 4)
        sample = DataSample(metainfo=dict(img_path=f'{index}.jpg'))
        sample.set_field(torch.stack((torch.randn(3, 4, 4) * 2, numbers.float())), 'label_map')
        sample.set_field(torch.tensor([0.0, 0.0, 1.0, 1.0]), 'label_box')
        found.append(sample.set_gt_label(index))
    return found


def expected_loss(logits, data, box, smoothing, ground_truth):
    """Both losses in plain loops. A token of 4 x 4 is one place of the map."""
    count, classes = logits.shape[:2]
    top, left, bottom, right = box
    dense = np.zeros((count, classes, 4, 4))
    for i, sample in enumerate(data):
        for k, y, x in np.ndindex(3, 4, 4):
            dense[i, int(sample.label_map[1, k, y, x]), y, x] = sample.label_map[0, k, y, x]

    def smooth(p):
        return (1 - smoothing) * p + smoothing / classes

    def softmax(v):
        return np.exp(v - v.max()) / np.exp(v - v.max()).sum()

    class_target = np.stack([smooth(softmax(dense[i].mean((1, 2)))) for i in range(count)])
    if ground_truth:
        for i, sample in enumerate(data):
            w = 0.5 if class_target[i].argmax() == int(sample.gt_label) else 0.9
            class_target[i] = w * class_target[i] + (1 - w) * smooth(np.eye(classes)[int(sample.gt_label)])
    area = (bottom - top) * (right - left) / 16
    logits = logits.numpy().astype(float)
    mixed = logits.copy()  # what the class token sees
    for i in range(count):
        mixed[i, :, top:bottom, left:right] = logits[count - 1 - i, :, top:bottom, left:right]
    of_class = of_tokens = 0.0
    for i in range(count):
        target = (1 - area) * class_target[i] + area * class_target[count - 1 - i]
        of_class -= (target * np.log(softmax(mixed[i].mean((1, 2))))).sum() / count
        for y, x in np.ndindex(4, 4):
            target = smooth(softmax(dense[i, :, y, x]))
            of_tokens -= (target * np.log(softmax(logits[i, :, y, x]))).sum() / (16 * count)
    return of_class, 0.5 * of_tokens


@pytest.mark.parametrize('ground_truth', [False, True])
def test_loss(monkeypatch, ground_truth):
    """Both losses are those of plain loops, for a batch of three images with a box that is not square."""
    torch.manual_seed(0)
    box = (1, 0, 3, 3)
    monkeypatch.setattr(volo_module, 'random_box', lambda size: (box, 1 - 6 / 16))
    model = TokenLabelClassifier(Recording(), Recording(), neck=Doubling(), ground_truth=ground_truth)
    logits = torch.randn(3, 7, 4, 4)
    data = samples(3, 7)
    of_class, _ = model.targets(data, logits)
    data[0].set_gt_label(of_class[0].argmax())  # one agrees with its map
    found = model.loss(logits.repeat_interleave(16, 2).repeat_interleave(16, 3), data)
    assert model.backbone.box == box
    expected = expected_loss(2 * logits, data, box, 0.1, ground_truth)
    assert found['loss_class'].item() == pytest.approx(expected[0], rel=1e-5)
    assert found['loss_tokens'].item() == pytest.approx(expected[1], rel=1e-5)


def test_random_box():
    """The share outside of the box is that of its area; boxes lie within the map and are of all sizes."""
    np.random.seed(0)
    shares = []
    for _ in range(300):
        (top, left, bottom, right), kept = volo_module.random_box((5, 9))
        assert 0 <= top <= bottom <= 5 and 0 <= left <= right <= 9
        assert kept == pytest.approx(1 - (bottom - top) * (right - left) / 45)
        shares.append(kept)
    assert min(shares) < 0.4 and max(shares) == 1


def test_learns():
    """All weights of an ELSAVOLO's classifier learn from the losses, at a size that is not a multiple of 16."""
    arch = dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(2, 2), stem_dim=8, mlp_ratio=2)
    model = classifier(arch, 6, type='TokenLabelClassifier', backbone=dict(img_size=64))
    data = samples(2, 6)
    losses = model.loss(torch.randn(2, 3, 64, 50), data)
    sum(losses.values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert len(model.predict(torch.randn(2, 3, 64, 50), None)) == 2


@pytest.mark.parametrize(
    'change, sentence',
    [
        (lambda sample: sample.__delattr__('label_box'), 'the data have no label maps'),
        (lambda sample: sample.label_map[1].fill_(7), 'label map of 0.jpg has class 7, but the head has 7'),
        (
            lambda sample: sample.set_field(torch.zeros(2, 3, 5, 5), 'label_map'),
            '1.jpg is .2, 3, 4, 4., and that of 0.jpg',
        ),
    ],
    ids=['no box', 'class', 'size'],
)
def test_refuses(change, sentence):
    """Samples that give no targets are named before tensors of other shapes or a wrong index meet."""
    data = samples(2, 7)
    change(data[0])
    with pytest.raises(InputError, match=sentence):
        TokenLabelClassifier(Recording(), Recording()).targets(data, torch.zeros(2, 7, 4, 4))


def test_refuses_arguments():
    """'no' would be true."""
    for wrong in (dict(token_loss_weight=-1), dict(ground_truth='no'), dict(label_smooth_val=1)):
        with pytest.raises(ValueError, match=f'{next(iter(wrong))} must be'):
            TokenLabelClassifier(Recording(), Recording(), **wrong)


def test_images_alone_are_not_mixed():
    """Mixup and CutMix mix images and labels, but not label maps. MixThenErase without them erases."""
    mixing = dict(type='Mixup', alpha=0.8)
    for augments in (mixing, [dict(type='mmattn.classification.MixThenErase', mixing=[mixing], erase_prob=0)]):
        with pytest.raises(ValueError, match='mixes images, but not their label maps'):
            TokenLabelClassifier(Recording(), Recording(), train_cfg=dict(augments=augments))
    erase = dict(type='mmattn.classification.MixThenErase', mixing=[], erase_prob=0.25)
    TokenLabelClassifier(Recording(), Recording(), train_cfg=dict(augments=erase))
