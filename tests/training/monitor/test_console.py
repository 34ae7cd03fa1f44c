"""What a run says of its policy while it trains."""

import torch

from madao import Policy, Uniform
from madao.training.monitor.console import favourite


def test_a_policy_that_prefers_nothing_is_not_said_to_favour_anything() -> None:
    assert favourite(None) == favourite(Uniform()) == favourite(Policy()) == ""
    policy = Policy()
    with torch.no_grad():
        policy.selection_logits[:, 3] = 0.3  # 9 %, not 7
    assert favourite(policy) == ""


def test_what_is_chosen_most_is_told_with_its_share() -> None:
    policy = Policy(stages=2, operations=["Rotate", "Invert", "Color"])
    with torch.no_grad():
        policy.selection_logits[:, 2] = 2.0
    assert favourite(policy) == "favours Color (79 %)"
