"""Classification against scikit-learn and torch."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, recall_score

from madao.tasks import Classification

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(60, 5, generator=GENERATOR)
LABELS = torch.multinomial(torch.tensor([0.5, 0.3, 0.15, 0.05]), 60, True, generator=GENERATOR)  # class 4 has none
LOGITS[torch.arange(60), LABELS] += 1.5 * (LABELS == 0)  # a class that is easier than others


@pytest.mark.parametrize("sizes", [(60,), (20, 3, 37)])
@pytest.mark.parametrize("classes", [None, 5, 4])
def test_errors_are_those_of_scikit_learn(sizes: tuple[int, ...], classes: int | None) -> None:
    measure = Classification(classes).measure()
    for logits, labels in zip(LOGITS.split(sizes), LABELS.split(sizes), strict=True):
        measure.add(logits, labels)
    score = measure.score(measure.sums())
    found = LOGITS.argmax(1)
    assert score.count == 60
    assert score.error == pytest.approx(1 - accuracy_score(LABELS, found), abs=1e-12)
    assert score.loss == pytest.approx(float(F.cross_entropy(LOGITS.double(), LABELS)), rel=1e-6)
    recall = recall_score(LABELS, found, labels=range(4), average="macro")  # a class of the data, or there is none
    assert score.metrics["mean_class_error"] == pytest.approx(1 - recall, abs=1e-12)
    assert abs(score.metrics["mean_class_error"] - score.error) > 0.05


def test_sums_of_processes_add_up() -> None:
    parts = []
    for start, stop in ((0, 25), (25, 60), (0, 0)):  # one of them has no image
        measure = Classification(5).measure()
        if stop:
            measure.add(LOGITS[start:stop], LABELS[start:stop])
        parts.append(measure.sums())
    whole = Classification(5).measure()
    whole.add(LOGITS, LABELS)
    together, alone = whole.score(torch.stack(parts).sum(0)), whole.score(whole.sums())
    assert (together.error, together.count, together.metrics) == (alone.error, alone.count, alone.metrics)
    assert together.loss == pytest.approx(alone.loss)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_mean_of_losses_is_the_loss(smoothing: float) -> None:
    task = Classification(label_smoothing=smoothing)
    losses = task.losses(LOGITS, LABELS)
    expected = F.cross_entropy(LOGITS, LABELS, label_smoothing=smoothing)
    assert losses.shape == (60,)
    torch.testing.assert_close(losses.mean(), expected)
    assert torch.equal(task.loss(LOGITS, LABELS), expected)
    assert task.num_errors(LOGITS, LABELS) == (LOGITS.argmax(1) != LABELS).sum()
