"""`madao.fit` as a user calls it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import madao
from madao.errors import MadaoError, UserError
from tests.helpers.image_files import write_image
from tests.helpers.training import assert_same

SMALL: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 16,
    "quiet": True,
    "logger": "none",
    "device": "cpu",
    "outer": {"every": 2, "warmup": 0, "batch_size": 8},
}


def pairs(count: int = 48, seed: int = 0) -> TensorDataset:
    """Images of 12 × 12 pixels whose brightness tells the class."""
    labels = torch.arange(count) % 2
    noise = torch.rand(count, 3, 12, 12, generator=torch.Generator().manual_seed(seed))
    return TensorDataset((noise + labels.reshape(-1, 1, 1, 1)) / 2, labels)


class Tiny(nn.Module):
    """A linear model that tells the classes apart."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.head = nn.Linear(3, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images.mean((2, 3)))
        return logits


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number in range(24):
        path = tmp_path / "photos" / ("dark", "light")[number % 2] / f"{number}.png"
        write_image(path, 40 + 120 * (number % 2) + number, (30, 24))
    return tmp_path / "photos"


def test_a_folder_by_the_name_of_a_model(folder: Path) -> None:
    result = madao.fit(folder, model="small-cnn", data={"size": 16}, **SMALL)
    assert len(result.history) == 2
    assert [row["epoch"] for row in result.history] == [1, 2]
    assert result.validation_error == result.history[-1]["validation_error"]
    assert isinstance(result.policy, madao.policy.FrozenPolicy)
    image = torch.rand(2, 3, 33, 47)
    assert result.model(image).shape == (2, len(result.model.classes))  # type: ignore[arg-type]
    assert torch.equal(madao.load_model(result.run)(image), result.model(image))
    assert result.report().stat().st_size > 10_000
    again = madao.fit(str(folder), model="small-cnn", data={"size": 16}, **SMALL)
    assert again.run.name == f"{result.run.name}-2"
    assert again.history == result.history


def test_data_sets_and_a_module(tmp_path: Path) -> None:
    network, out = Tiny(), tmp_path / "run"
    before = [parameter.clone() for parameter in network.parameters()]
    result = madao.fit(
        pairs(), network, validation=pairs(16, 1), test=pairs(20, 2), out=str(out), optimizer={"lr": 0.5}, **SMALL
    )
    assert result.test_error is not None
    assert not any(torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))
    assert next(iter(result.model.parameters())) is next(network.parameters())
    images, labels = pairs(20, 2).tensors
    assert float((result.model(images).argmax(1) != labels).float().mean()) == pytest.approx(result.test_error)
    assert torch.equal(madao.load_model(out, network=Tiny())(images), result.model(images))
    with pytest.raises(UserError):
        madao.load_model(out)


def test_an_interrupted_fit_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    def fitted(name: str, **more: Any) -> madao.FitResult:
        torch.manual_seed(0)
        return madao.fit(pairs(), Tiny(), out=str(tmp_path / name), **{**SMALL, "epochs": 3, **more})

    whole = fitted("whole")
    script = (
        "import torch, madao, signal, sys\n"
        "from tests.fitting.test_fit import *\n"
        "from madao.training.trainer import Trainer\n"
        "original = Trainer.end_epoch\n"
        "def end_epoch(self):\n"
        "    original(self)\n"
        "    if self.run.epoch == 1: signal.raise_signal(signal.SIGINT)\n"
        "Trainer.end_epoch = end_epoch\n"
        "torch.manual_seed(0)\n"
        f"madao.fit(pairs(), Tiny(), out={str(tmp_path / 'parts')!r}, **{{**SMALL, 'epochs': 3}})\n"
    )
    stopped = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "Interrupted" in stopped.stderr
    parts = fitted("parts", resume=True)
    assert_same(dict(parts.model.state_dict()), dict(whole.model.state_dict()))
    assert parts.history == whole.history


def test_the_result_shows_itself(tmp_path: Path) -> None:
    result = madao.fit(pairs(), Tiny(), out=str(tmp_path / "run"), **SMALL)
    assert f"validation error {100 * (result.validation_error or 0):.2f} %" in repr(result)
    assert isinstance(result.policy, madao.policy.FrozenPolicy)
    assert result.policy._repr_html_() in result._repr_html_()
    base = madao.fit(pairs(), Tiny(), out=str(tmp_path / "base"), augment={"method": "base"}, **SMALL)
    assert base.policy is None
    assert "<table" not in base._repr_html_()


def test_quiet_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    madao.fit(pairs(), Tiny(), out=str(tmp_path / "quiet"), **SMALL)
    assert capfd.readouterr().out == ""
    madao.fit(pairs(), Tiny(), out=str(tmp_path / "loud"), **{**SMALL, "quiet": False})
    assert "epoch 2/2" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("data", "model", "settings"),
    [
        ("no/such/folder", None, {}),
        (pairs(), Tiny(1), {}),
        (pairs(), "resnet1", {}),
        (pairs(), Tiny(), {"epoch": 3}),
        (pairs(), Tiny(), {"outer": {"evry": 3}}),
        (pairs(), Tiny(), {"epochs": 0}),
        (TensorDataset(torch.rand(4, 3, 12, 12) - 0.5, torch.tensor([0, 1, 0, 1])), Tiny(), {}),
        (TensorDataset(torch.rand(4, 3, 12, 12), torch.tensor([0, 2, 0, 2])), Tiny(3), {}),
        ("photos", Tiny(), {"validation": pairs()}),
    ],
    ids=["folder", "outputs", "name", "setting", "section", "value", "normalised", "gap", "validation"],
)
def test_mistakes_are_errors_of_madao(data: Any, model: Any, settings: Any, tmp_path: Path) -> None:
    with pytest.raises(MadaoError):
        madao.fit(data, model, **{**SMALL, "out": str(tmp_path / "run"), **settings})
