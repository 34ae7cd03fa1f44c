"""Policies for each class: files, labels and mistakes."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from madao import BaseAugmentation, ClassPolicy, Policy, PolicySpec
from madao.errors import PolicyFileError
from tests.helpers.policies import scattered, seeded

IMAGES = torch.rand(60, 3, 8, 8, generator=seeded(0))
LABELS = torch.arange(60) % 3


def test_each_class_has_a_spec_of_its_own() -> None:
    policy = scattered(ClassPolicy(3, fill=0.25), 1.5)
    spec = policy.spec()
    assert '"version": 1' in spec.of_class("1").dumps()
    for number, name in enumerate(spec.classes):
        single = Policy(fill=0.25)
        with torch.no_grad():
            for kind in ("selection", "application", "magnitude"):
                deviation = policy.get_parameter(f"{kind}_deviations")[:, number]
                single.get_parameter(f"{kind}_logits").copy_(policy.get_parameter(f"{kind}_logits") + deviation)
        assert spec.of_class(name) == single.spec()
    again = ClassPolicy.from_spec(spec)
    torch.testing.assert_close(again.spec().tables(), spec.tables(), rtol=1e-4, atol=1e-5)
    shares = spec.tables(torch.float64)[0].sum(-1)
    torch.testing.assert_close(shares, torch.ones_like(shares), rtol=0, atol=1e-12)
    torch.testing.assert_close(again.magnitude_logits, policy.magnitude_logits, rtol=1e-3, atol=1e-3)


TEXT = ClassPolicy(2, 1, operations=["Invert", "Rotate"]).spec().dumps()
SECOND = TEXT.index('    "1": [')


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (TEXT.replace('"version": 2', '"version": 1'), "classes"),
        (TEXT.replace('"classes"', '"klasses"'), "classes"),
        (TEXT.replace('    "1": [', '    "0": ['), "twice"),
        (TEXT.replace('"version": 2', '"version": 5'), "version"),
        (TEXT.replace('"version": 2', '"version": 4'), "variation"),
        (TEXT[:SECOND] + '    "1": null\n  }\n}\n', r"classes\.1"),
        (TEXT[:SECOND] + '    "1": []\n  }\n}\n', r"classes\.1"),
        ('"selection": 0.1'.join(TEXT.rsplit('"selection": 0.5', 1)), r"classes\.1\[0\]"),
    ],
)
def test_files_with_invalid_classes_are_refused(text: str, place: str) -> None:
    assert text != TEXT
    with pytest.raises(PolicyFileError, match=place):
        PolicySpec.loads(text)


LEARNED, SPEC = ClassPolicy(["cat", "dog", "owl"]), ClassPolicy(2).spec()


@pytest.mark.parametrize(
    "labels", [LABELS[:-1], LABELS.float(), torch.rand(60, 3), LABELS[:, None], LABELS + 1, LABELS - 1]
)
def test_labels_that_do_not_fit_are_refused(labels: Tensor) -> None:
    with pytest.raises(ValueError, match="labels"):
        LEARNED(IMAGES, labels)


@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        (lambda: LEARNED(IMAGES), "labels"),
        (lambda: dataclasses.replace(SPEC, classes=("a",)), "classes"),
        (lambda: dataclasses.replace(SPEC, classes=("a", "a")), "twice"),
        (lambda: SPEC.of_class("owl"), "this policy has 0, 1"),
        (lambda: Policy().spec().of_class("owl"), "this policy has none"),
    ],
)
def test_mistakes_are_refused(mistake: Callable[[], object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        mistake()


def test_within_base_augmentation_it_is_given_the_labels() -> None:
    base = BaseAugmentation(padding=1, cutout=0, policy=scattered(ClassPolicy(3, seed=3)), seed=4)
    draw = base.sample(IMAGES, seeded(), relaxed=True, labels=LABELS)
    assert draw.inner is not None
    assert draw.inner.differentiable
    other = BaseAugmentation(padding=1, cutout=0, policy=ClassPolicy(3), seed=0)
    other.load_state_dict(base.state_dict())
    assert torch.equal(other(IMAGES, LABELS), base(IMAGES, LABELS))
    assert not torch.equal(other(IMAGES, LABELS), base(IMAGES, LABELS.flip(0)))
