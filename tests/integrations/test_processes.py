"""Several processes under other libraries' trainers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.training.test_parallel import ended, started, torchrun

SCRIPT = str(Path(__file__).with_name("processes.py"))


def trained(folder: Path, world: int, library: str, *resumed: str) -> list[dict[str, Tensor]]:
    """What each process ended with."""
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


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_two_processes_learn_what_one_does(tmp_path: Path, library: str) -> None:
    (alone,) = trained(tmp_path / "one", 1, library)
    first, second = trained(tmp_path / "two", 2, library)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert far(alone, first) < 1e-12
    assert alone["selection_logits"].std() > 0.1  # it has learned something
    if library == "lightning":
        trained(tmp_path / "half", 2, library, "first")
        (resumed,) = trained(tmp_path / "rest", 1, library, str(tmp_path / "half" / "last.ckpt"))
        assert far(alone, resumed) < 1e-12


def test_images_that_are_kept_are_handed_out_anew_to_more_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five images one process has three and one two. Yet both keep as many batches, as checkpoints ask them to."""
    monkeypatch.setenv("TRAIN_IMAGES", "11")
    monkeypatch.setenv("TOGETHER", "5")
    trained(tmp_path / "half", 1, "lightning", "first")
    monkeypatch.setenv("TOGETHER", "6")
    several = trained(tmp_path / "rest", 2, "lightning", str(tmp_path / "half" / "last.ckpt"))
    assert all(torch.equal(tensor, several[1][name]) for name, tensor in several[0].items())
