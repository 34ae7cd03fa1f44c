"""Nearest neighbours against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch.nn import functional as F

from madao.tasks import KNN

GENERATOR = torch.Generator().manual_seed(0)
CENTRES = torch.randn(4, 6, generator=GENERATOR)
LABELS, OTHERS = (torch.randint(0, 4, (count,), generator=GENERATOR) for count in (90, 50))
KNOWN, NEW = (CENTRES[labels] + 0.9 * torch.randn(len(labels), 6, generator=GENERATOR) for labels in (LABELS, OTHERS))


@pytest.mark.parametrize("k", [1, 7, 40])
def test_votes_are_those_of_scikit_learn(k: int) -> None:
    measure = KNN(4, k)
    measure.compare_with(3 * KNOWN, LABELS)  # lengths do not matter
    counted = min(k, 90 // 4)  # no more than a class has images
    classifier = KNeighborsClassifier(counted, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    expected = classifier.fit(KNOWN, LABELS).predict_proba(NEW)
    torch.testing.assert_close(measure.votes(NEW), torch.from_numpy(expected).float(), atol=1e-5, rtol=1e-4)
    measure.add(NEW, OTHERS)
    score = measure.score(measure.sums())
    assert score.error == pytest.approx(1 - classifier.score(NEW, OTHERS))
    assert 0 < score.error < 0.5
    share = torch.from_numpy(expected).clamp(min=1e-12)
    assert score.loss == pytest.approx(float(F.nll_loss(share.log(), OTHERS)), rel=1e-4)
