"""The outer step that is tried before training."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from madao import Policy
from madao.errors import SharedError
from madao.hypergrad import Neumann, Relaxed
from madao.outer.derivative_check import check_derivatives
from tests.helpers.outer_steps import TRAIN, VALIDATION, flat, network, policy_optimizer
from tests.helpers.reverse_only import Square


@pytest.mark.parametrize("settings", [{}, {"estimator": Relaxed(), "solver": Neumann(steps=1)}, {"pathwise_batch": 2}])
def test_nothing_changes(settings: dict[str, Any]) -> None:
    steps = []
    for check in (False, True):
        model, policy = network(), Policy()
        outer = policy_optimizer(policy, model, **settings)
        weights, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        if check:
            assert check_derivatives(outer, TRAIN, VALIDATION) == []
        assert torch.equal(torch.get_rng_state(), random_state)
        for name, value in model.state_dict().items():
            assert torch.equal(value, weights[name]), name
        outer.step(TRAIN, VALIDATION)
        outer.step(TRAIN, VALIDATION)
        steps.append(flat(policy))
    assert torch.equal(*steps)


def test_a_model_without_forward_mode_is_told_of_once() -> None:
    model = nn.Sequential(network()[0], Square(), nn.Flatten(), nn.Linear(216, 3))
    outer = policy_optimizer(Policy(), model)
    lines = check_derivatives(outer, TRAIN, VALIDATION)
    assert len(lines) == 1
    assert "forward mode" in lines[0]
    assert check_derivatives(outer, TRAIN, VALIDATION) == []


def test_a_model_that_fails_is_an_error_for_the_user() -> None:
    outer = policy_optimizer(Policy(), nn.Sequential(nn.Flatten(), nn.Linear(63, 3)))
    with pytest.raises(SharedError, match=r"choose another `model\.name`"):
        check_derivatives(outer, TRAIN, VALIDATION)
