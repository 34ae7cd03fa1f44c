"""Several processes train as one does, up to rounding."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from madao.data import Batches, InMemoryImages
from madao.distributed.group import ProcessGroup, Shard
from madao.distributed.launch import convert_sync_batchnorm, rank_zero_first
from madao.distributed.sampling import sample_base_shard, sample_shard, shard_of
from madao.errors import SharedError
from madao.hypergrad import Unrolled, hypergradient
from madao.policy import BaseAugmentation, Policy
from tests.helpers.launching import ended, started
from tests.helpers.problems import quadratic
from tests.helpers.training_processes import CASES


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[str, Any]]:
    """Train with 1, 2 and 3 processes. The keys are the number of processes and the rank."""
    folder = tmp_path_factory.mktemp("processes")
    ranks = [(world, rank) for world in (1, 2, 3) for rank in range(world)]
    running = [started("-m", "tests.helpers.training_processes", str(folder), str(r), str(w)) for w, r in ranks]
    outputs = [ended(process, 300) for process in running]
    for process, output in zip(running, outputs, strict=True):
        assert process.returncode == 0, output
    return {(w, r): torch.load(folder / f"{w}-{r}.pt", weights_only=True) for w, r in ranks}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_train_as_one_does(
    results: dict[tuple[int, int], dict[str, Any]], world: int, case: str
) -> None:
    alone = results[1, 0][case]
    for rank in range(world):
        found = results[world, rank][case]
        assert len(found["seen"]) == len(alone["seen"]) == 20
        for mine, expected in zip(found["seen"], alone["seen"], strict=True):
            for name in ("q", "grads"):
                torch.testing.assert_close(mine[name], expected[name], rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(mine["numbers"], expected["numbers"], rtol=1e-8, atol=1e-8, equal_nan=True)
        for kind in ("weights", "policy"):
            torch.testing.assert_close(found[kind], alone[kind], rtol=1e-8, atol=1e-8)
            for name, value in found[kind].items():
                assert torch.equal(value, results[world, 0][case][kind][name]), "the same on every process, to the bit"
    assert any((value != 0.5).any() for value in alone["policy"].values())


@pytest.mark.parametrize(
    ("case", "vectors"), [("influence, deflated", 2), ("influence, v itself", 1), ("relaxed, neumann", 4)]
)
def test_an_outer_step_sums_few_vectors_as_large_as_the_model(
    results: dict[tuple[int, int], dict[str, Any]], case: str, vectors: int
) -> None:
    """The rest are the policy's gradient and the influences; `benchmarks/speed/communication.py` says the same."""
    found = results[2, 0][case]
    size = sum(value.numel() for value in found["weights"].values())
    summed = found["seen"][1]["summed"]  # at the first one the residual is measured too
    assert vectors * size < summed <= vectors * size + 150


def test_a_batch_is_shared_without_loss() -> None:
    images = InMemoryImages(torch.arange(23, dtype=torch.uint8).reshape(23, 1, 1, 1), torch.arange(23))
    whole = Batches(images, 5, torch.device("cpu"), seed=3, drop_last=False)
    parts = [Batches(images, 5, torch.device("cpu"), 3, drop_last=False, rank=rank, world=4) for rank in range(4)]
    expected = [labels for _, labels in whole.epoch(1)]
    shares = [[labels for _, labels in part.epoch(1)] for part in parts]
    assert [len(labels) for labels in shares[0]] == [2, 2, 2, 2, 1]
    assert [len(share) for share in shares] == [5, 5, 5, 4]  # of the last batch of three nothing is left for the fourth
    for number, labels in enumerate(expected):
        assert torch.equal(torch.cat([share[number] for share in shares if number < len(share)]), labels)
        for rank, share in enumerate(shares):
            place = shard_of(len(labels), ProcessGroup(rank, 4))
            assert place.total == len(labels)
            if len(place):
                assert torch.equal(share[number], labels[place.start : place.stop])
    streamed = parts[1].stream(4)
    assert torch.equal(next(streamed)[1], [labels for _, labels in parts[1].epoch(0)][4])


def test_every_process_draws_for_all_and_takes_its_own() -> None:
    images, labels = torch.rand(7, 3, 8, 8), torch.zeros(7, dtype=torch.int64)
    whole = Policy(seed=5).sample(images)
    holes = BaseAugmentation(seed=5, padding=2).sample(images)
    for rank in range(3):
        place = shard_of(7, ProcessGroup(rank, 3))
        own = images[place.start : place.stop]
        mine = sample_shard(Policy(seed=5), own, labels[: len(own)], place)
        standard = sample_base_shard(BaseAugmentation(seed=5, padding=2), own, place)
        assert torch.equal(mine.choice, whole.choice[:, place.start : place.stop])
        assert torch.equal(mine.magnitude, whole.magnitude[:, place.start : place.stop])
        assert torch.equal(standard.hole_x, holes.hole_x[place.start : place.stop])
        assert torch.equal(standard.top, holes.top[place.start : place.stop])
    policies = [Policy(seed=5) for _ in range(2)]
    for rank, policy in enumerate(policies):
        place = shard_of(7, ProcessGroup(rank, 2))
        sample_shard(policy, images[place.start : place.stop], labels[: len(place)], place)
    assert torch.equal(policies[0].sample(images).choice, policies[1].sample(images).choice)


def test_shards_divide_a_batch() -> None:
    assert Shard.of(1, [3, 2, 4]) == Shard(3, 5, 9)
    assert len(Shard(3, 5, 9)) == 2
    assert [shard_of(8, ProcessGroup(rank, 3)) for rank in range(3)] == [Shard(0, 3, 8), Shard(3, 6, 8), Shard(6, 8, 8)]


def test_unrolling_is_for_one_process() -> None:
    problem = quadratic().problem
    with pytest.raises(ValueError, match="Unrolled"):
        hypergradient(dataclasses.replace(problem, ranks=ProcessGroup(0, 2)), Unrolled(2))


def test_batch_statistics_are_shared_by_gpus_only() -> None:
    network, gpu = nn.Sequential(nn.BatchNorm2d(3)), torch.device("cuda", 0)
    with pytest.raises(SharedError, match="GPU"):
        convert_sync_batchnorm(network, torch.device("cpu"))
    with pytest.raises(SharedError, match=r"outer\.model_mode"):
        convert_sync_batchnorm(network, gpu, twice=True)
    assert isinstance(convert_sync_batchnorm(network, gpu)[0], nn.SyncBatchNorm)  # type: ignore[index]


class Distant(ProcessGroup):
    """The second of two processes. The object of the first one is given."""

    says: Any = (None, None)

    def broadcast_object(self, value: Any) -> Any:
        return self.says


def test_an_error_of_the_first_process_stops_the_others() -> None:
    other = Distant(1, 2)
    done: list[int] = []
    object.__setattr__(other, "says", ("result", None))
    assert rank_zero_first(other, lambda: done.append(1)) == "result"
    assert not done
    assert rank_zero_first(other, lambda: "own", again=True) == "own"
    object.__setattr__(other, "says", (None, "no disk"))
    with pytest.raises(SharedError, match="no disk"):
        rank_zero_first(other, lambda: None)
    with pytest.raises(ValueError, match="program"):
        rank_zero_first(ProcessGroup(), _fails)
    assert rank_zero_first(ProcessGroup(), lambda: 3) == 3


def _fails() -> None:
    raise ValueError("of the program")
