"""A module's own random numbers, saved and taken up again."""

import torch

from madao.policy import Policy


def test_a_state_goes_on_on_another_device_of_its_kind() -> None:
    """As where the first process of several, on cuda:0, saved it, and the second goes on on cuda:1."""
    first = Policy(seed=3)
    first.generator("cpu:0").manual_seed(77)
    state = first.get_extra_state()
    assert list(state["generators"]) == ["cpu:0"]
    second = Policy(seed=3)
    second.set_extra_state(state)
    assert second.get_extra_state()["generators"].keys() == {"cpu:0"}  # also before it is used
    expected = torch.rand(4, generator=torch.Generator().manual_seed(77))
    assert torch.equal(torch.rand(4, generator=second.generator("cpu")), expected)
