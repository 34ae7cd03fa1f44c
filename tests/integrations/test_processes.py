"""Several processes under the trainers of other libraries."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import madao
from madao.distributed.group import ProcessGroup, Shard
from madao.integrations.loop_adapter import LoopAdapter
from tests.helpers.launching import ended, started, torchrun

SCRIPT = str(Path(__file__).parents[1] / "helpers" / "integration_processes.py")


def trained(folder: Path, world: int, library: str, *resumed: str) -> list[dict[str, Tensor]]:
    """Run a training, and return the weights and the policy of each process."""
    folder.mkdir()
    command = [SCRIPT, library, str(folder), *resumed]
    if world > 1:
        command = torchrun("--standalone", f"--nproc-per-node={world}", *command)
    process = started(*command)
    output = ended(process)
    assert process.returncode == 0, output
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)]


def far(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    return max(float((tensor - second[name]).abs().max()) for name, tensor in first.items())


@pytest.mark.parametrize("library", ["lightning", pytest.param("transformers", marks=pytest.mark.slow)])
def test_two_processes_learn_what_one_does(tmp_path: Path, library: str) -> None:
    (alone,) = trained(tmp_path / "one", 1, library)
    first, second = trained(tmp_path / "two", 2, library)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert far(alone, first) < 1e-12
    assert alone["selection_logits"].std() > 0.1  # it has learned something


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    (alone,) = trained(tmp_path / "one", 1, "lightning")
    trained(tmp_path / "half", 2, "lightning", "first")
    (resumed,) = trained(tmp_path / "rest", 1, "lightning", str(tmp_path / "half" / "last.ckpt"))
    assert far(alone, resumed) < 1e-12


told: list[list[Tensor]] = []
"""The messages of the first process to the second one, which runs after it."""


class InTurn(ProcessGroup):
    """Two processes, of which the second runs when the first has ended."""

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        found = list(tensors)
        if self.rank == 0:
            told.append([tensor.detach().clone() for tensor in found])
        else:
            for tensor, value in zip(found, told.pop(0), strict=True):
                tensor.data.copy_(value)

    def broadcast_object(self, value: Any) -> Any:
        return value

    def all_gather(self, values: Tensor, place: Shard | None = None) -> Tensor:
        return values

    def places(self, counts: Sequence[int], device: torch.device) -> list[Shard]:
        return [Shard.alone(count) for count in counts]


def test_an_image_policy_is_standardised_alike_in_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process has one image and waits for more. The second has two at first and waits too."""
    told.clear()
    policies, seen = [], []
    for rank in range(2):
        monkeypatch.setattr(ProcessGroup, "current", lambda rank=rank: InTurn(rank, 2))
        policy = madao.ImagePolicy(seed=rank)
        learner = LoopAdapter(policy, 0, 1, None, None, {})
        learner.start(nn.Linear(1, 1))
        generator = torch.Generator().manual_seed(rank)
        for count in (1 + rank, 6, 6):
            images = torch.rand(count, 1, 4, 4, generator=generator)
            learner.augment([images, torch.arange(count)])
            seen.append(images)
        policies.append(policy)
    assert not told
    expected = madao.ImagePolicy(seed=0)
    expected.standardise(seen[1])
    for policy in policies:
        for (name, found), value in zip(policy.named_buffers(), expected.buffers(), strict=True):
            assert torch.equal(found, value), name


def test_all_processes_drop_kept_images_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process has three of five images and the other two. Checkpoints need the same number of batches of both."""
    kept = [[torch.rand(5, 1, 4, 4), torch.arange(5)] for _ in range(3)]
    told.clear()
    lengths = []
    for rank in range(2):
        monkeypatch.setattr(ProcessGroup, "current", lambda rank=rank: InTurn(rank, 2))
        learner = LoopAdapter(madao.Policy(), 0, 1, 11, None, {})
        learner.load_state_dict({"policy": learner.policy.state_dict(), "outer": None, "kept": kept})
        learner.start(nn.Linear(1, 1))
        assert [len(targets) for _, targets, _ in learner._kept] == [3 - rank] * 3
        learner._kept.append((torch.rand(3, 1, 4, 4), torch.arange(3), 6))
        learner._forget()
        lengths.append(len(learner._kept))
    assert lengths == [2, 2]  # 5 + 6 images, as many as are needed
