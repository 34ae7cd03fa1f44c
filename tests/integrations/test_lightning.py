"""The callback in trainings by the real Trainer."""

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import madao
from madao.integrations.lightning import PolicyCallback
from madao.integrations.validation import outer_batches
from tests.helpers.policies import equal, inverting_class

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{message}")
    for message in (
        ".*does not have many workers.*",
        ".*treespec, LeafSpec.*",
        "The number of training batches .* is smaller than the logging interval",
        "You defined a `validation_step` but have no `val_dataloader`",
    )
]


def data(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.rand(count, 1, 8, 8, generator=generator), torch.arange(count) % 3)


TRAIN, VALIDATION = data(24, 0), data(12, 1)


def loaders(**settings: Any) -> tuple[DataLoader[Any], DataLoader[Any]]:
    return DataLoader(TRAIN, 6, **settings), DataLoader(VALIDATION, 4)


class Classifier(pl.LightningModule):
    """A classifier that keeps the batches of its steps."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))
        for parameter in self.net.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)
        self.seen: dict[str, list[Any]] = {"train": [], "validation": [], "test": []}

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.net(images)
        return outputs

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen["train"].append(batch)
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["validation"].append(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["test"].append(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(callbacks: list[pl.Callback], **settings: Any) -> pl.Trainer:
    without = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"), False)
    return pl.Trainer(**{"accelerator": "cpu", "max_epochs": 2, "callbacks": callbacks, **without, **settings})


def fit(callback: PolicyCallback, module: pl.LightningModule | None = None, **settings: Any) -> madao.PolicyOptimizer:
    """Train for one epoch, and return the optimizer of the policy."""
    trainer([callback], **{"max_epochs": 1, **settings}).fit(Classifier() if module is None else module, *loaders())
    assert callback.outer is not None
    return callback.outer


def adam(policy: madao.Policy) -> torch.optim.Optimizer:
    return torch.optim.Adam(policy.parameters(), lr=0.1)


def unchanging_policy() -> madao.Policy:
    policy = madao.Policy()
    with torch.no_grad():
        policy.application_logits.fill_(-1000.0)
    return policy


@pytest.mark.parametrize(("accumulate", "train_images"), [(1, None), (2, None), (1, 10)])
def test_it_is_the_plain_loop_bit_for_bit(accumulate: int, train_images: int | None) -> None:
    policy, module = madao.Policy(), Classifier()
    callback = PolicyCallback(policy, every=2, warmup=1, optimizer=adam(policy), train_images=train_images)
    learned = fit(callback, module, max_epochs=4, accumulate_grad_batches=accumulate)

    again, model = madao.Policy(), Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = madao.PolicyOptimizer(again, model, every=2, warmup=1, optimizer=adam(again))
    validation, newest = outer_batches(loaders()[1], None, 0), []
    for number, (images, labels) in enumerate(batch for _ in range(4) for batch in loaders()[0]):
        (F.cross_entropy(model(again(images)), labels) / accumulate).backward()
        newest.append((images, labels))
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            pooled = [torch.cat(tensors) for tensors in zip(*newest, strict=True)]
            chosen = tuple(tensor[-(train_images or 6 * accumulate) :] for tensor in pooled)
            if outer.tick():
                outer.update(chosen, tuple(next(validation)))
    assert outer.calls == learned.calls == 16 // accumulate
    assert outer.updates >= 3
    assert not equal(madao.Policy(), policy)
    assert equal(policy, again)
    assert equal(module, model)


def test_a_policy_with_classes_is_given_the_targets() -> None:
    policy = inverting_class(2, 3)
    module = Classifier()
    callback = PolicyCallback(policy, every=2, optimizer=torch.optim.SGD(policy.parameters(), lr=0.0))
    assert fit(callback, module).updates == 2
    images, targets = TRAIN.tensors
    expected = torch.where((targets == 2).reshape(-1, 1, 1, 1), 1 - images, images)
    assert torch.equal(torch.cat([batch[0] for batch in module.seen["train"]]), expected)


def test_a_policy_that_changes_nothing_changes_nothing() -> None:
    """The order of images, dropout and validation are those of a training without the callback."""
    modules = []
    for callbacks in ([], [PolicyCallback(policy := unchanging_policy(), every=1, optimizer=adam(policy))]):
        torch.manual_seed(0)
        modules.append(module := Classifier(dropout=0.5))
        trainer(list(callbacks), max_epochs=3).fit(module, *loaders(shuffle=True))
    assert equal(*modules)
    ours, theirs = (torch.cat([batch[0] for batch in module.seen["validation"]]) for module in modules)
    assert torch.equal(ours, theirs)


def as_mapping(examples: list[Any]) -> dict[str, Tensor]:
    images, labels = default_collate(examples)
    return {"image": images, "label": labels}


class ClassifierOfMappings(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen["train"].append(batch)
        return F.cross_entropy(self(batch["image"]), batch["label"])


def test_only_training_images_are_augmented() -> None:
    policy, module = madao.Policy(), ClassifierOfMappings()
    callback = PolicyCallback(policy, images="image", targets="label", every=3, optimizer=adam(policy))
    train, validation = (DataLoader(data, 6, collate_fn=as_mapping) for data in (TRAIN, VALIDATION))
    running = trainer([callback], max_epochs=1)
    running.fit(module, train, validation)
    running.test(module, validation)
    raw = torch.cat([batch["image"] for batch in train])
    expected = torch.cat([madao.Policy()(batch["image"]) for batch in train][:1])
    seen = torch.cat([batch["image"] for batch in module.seen["train"]])
    assert torch.equal(seen[:6], expected)
    assert not torch.equal(seen, raw)
    assert torch.equal(torch.cat([batch["image"] for batch in train]), raw)
    for stage in ("validation", "test"):
        images = [batch["image"] for batch in module.seen[stage]]
        whole = torch.cat([batch["image"] for batch in validation])
        assert len(images) in (2, 4)  # after the sanity check, and test
        assert torch.equal(torch.cat(images[-2:]), whole)


def test_it_resumes_exactly(tmp_path: Path) -> None:
    def fit(epochs: int, path: Path | None = None) -> tuple[PolicyCallback, Classifier]:
        policy = madao.Policy()
        # Images of the epoch before are among the newest 20, and three steps do not divide an epoch's four.
        callback = PolicyCallback(policy, every=3, warmup=2, optimizer=adam(policy), train_images=20)
        module = Classifier()
        running = trainer([callback], max_epochs=epochs)
        running.fit(module, *loaders(), ckpt_path=path)
        running.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return callback, module

    whole, model = fit(6)
    fit(2)
    resumed, same = fit(6, tmp_path / "2.ckpt")
    assert whole.outer is not None
    assert resumed.outer is not None
    assert whole.outer.updates == resumed.outer.updates == 8
    assert equal(model, same)
    assert equal(whole.policy, resumed.policy)
    images = torch.rand(5, 1, 8, 8)
    assert torch.equal(whole.policy(images), resumed.policy(images))  # the random state, too


def test_it_logs_each_outer_step(tmp_path: Path) -> None:
    policy = madao.Policy()
    callback = PolicyCallback(policy, every=3, optimizer=adam(policy))
    running = trainer([callback], max_epochs=6, logger=CSVLogger(tmp_path), log_every_n_steps=1000)
    running.fit(Classifier(), *loaders())
    with open(tmp_path / "lightning_logs" / "version_0" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [3, 6, 9, 12, 15, 18, 21, 24]
    shares = [float(rows[-1][f"policy/{operation.name}"]) for operation in policy.operations]
    assert shares == pytest.approx(policy.selection.mean(0).tolist(), abs=1e-6)
    assert all(float(row["policy/gradient_norm"]) > 0 for row in rows)
    assert float(rows[-1]["policy/signal_selection"]) != 0
    assert running.callback_metrics["policy/Rotate"] == pytest.approx(float(rows[-1]["policy/Rotate"]))


def test_it_works_with_limits_and_a_datamodule_that_does_not_validate() -> None:
    class Module(pl.LightningDataModule):
        def train_dataloader(self) -> DataLoader[Any]:
            return loaders()[0]

        def val_dataloader(self) -> DataLoader[Any]:
            return loaders()[1]

    policy, module = madao.Policy(), Classifier()
    callback = PolicyCallback(policy, every=1, optimizer=adam(policy))
    trainer([callback], limit_train_batches=3, limit_val_batches=0).fit(module, datamodule=Module())
    assert callback.outer is not None
    assert callback.outer.updates == 6
    assert module.seen["validation"] == []


def test_validation_images_can_be_others_than_the_trainer_s() -> None:
    seen: list[Tensor] = []

    def transform(images: Tensor) -> Tensor:
        seen.append(images.detach())
        return images

    own = DataLoader(TensorDataset(torch.zeros(5, 1, 8, 8), torch.zeros(5, dtype=torch.int64)), 2)
    callback = PolicyCallback(madao.Policy(), every=1, validation=own, validation_images=3, transform=transform)
    fit(callback)
    assert [len(images) for images in seen if not images.any()] == [3] * 4
    assert {len(images) for images in seen if images.any()} == {6}


def test_the_model_can_be_a_part_of_the_module() -> None:
    class WithoutForward(Classifier):
        forward = pl.LightningModule.forward

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

    callback = PolicyCallback(madao.Policy(), every=1, model="net")
    module = WithoutForward()
    outer = fit(callback, module)
    assert outer.model is module.net
    assert outer.updates == 4


def test_mixed_precision_reaches_the_outer_steps() -> None:
    outer = fit(PolicyCallback(madao.Policy(), every=2), precision="bf16-mixed")
    assert outer.compute.autocast is torch.bfloat16
    assert outer.updates == 2


def test_the_module_is_left_as_it_was() -> None:
    module = Classifier()
    fit(PolicyCallback(madao.Policy()), module)
    assert "training_step" not in vars(module)

    class Failing(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            raise RuntimeError("no")

    failing = Failing()
    with pytest.raises(RuntimeError, match="no"):
        trainer([PolicyCallback(madao.Policy())], max_epochs=1).fit(failing, *loaders())
    assert "training_step" not in vars(failing)


def test_another_fit_goes_on_and_another_model_begins_anew() -> None:
    callback, module = PolicyCallback(madao.Policy(), every=2), Classifier()
    assert [fit(callback, each).calls for each in (module, module, Classifier())] == [4, 8, 4]


class Manual(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Sharded(DDPStrategy):
    pass


NORMALISED = DataLoader(TensorDataset(TRAIN.tensors[0] * 4 - 2, TRAIN.tensors[1]), 6)


@pytest.mark.parametrize(
    ("fits", "name"),
    [
        (lambda callback: fit(callback, Manual()), "Manual"),
        (lambda callback: callback.setup(SimpleNamespace(strategy=Sharded()), Classifier(), "fit"), "Sharded"),
        (lambda callback: fit(callback, precision="bf16-true"), "bf16-true"),
        (lambda callback: trainer([callback]).fit(Classifier(), NORMALISED, loaders()[1]), "before normalising"),
        (lambda _: PolicyCallback(madao.Policy(), train_images=0), "train_images"),
    ],
)
def test_trainings_that_cannot_learn_a_policy_are_refused(fits: Callable[[Any], object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        fits(PolicyCallback(madao.Policy()))


@pytest.mark.parametrize("count", [0, 2])
def test_without_one_validation_loader_it_says_so(count: int) -> None:
    class TwoLoaders(Classifier):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            pass

    with pytest.raises(ValueError, match=f"{count};"):
        trainer([PolicyCallback(madao.Policy(), every=1)], limit_val_batches=count).fit(
            TwoLoaders(), loaders()[0], [loaders()[1]] * count or None
        )


def test_uint8_images_want_a_transform() -> None:
    class OfBytes(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self(batch[0] / 255), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

    whole = TensorDataset((TRAIN.tensors[0] * 255).to(torch.uint8), TRAIN.tensors[1])
    with pytest.raises(TypeError, match="uint8"):
        trainer([PolicyCallback(madao.Policy())]).fit(OfBytes(), DataLoader(whole, 6), DataLoader(whole, 6))
    callback = PolicyCallback(madao.Policy(), every=2, transform=lambda images: images)
    trainer([callback], max_epochs=1).fit(OfBytes(), DataLoader(whole, 6), DataLoader(whole, 6))
    assert callback.outer is not None
    assert callback.outer.updates == 2


def test_unknown_settings_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="evry"):
        PolicyCallback(madao.Policy(), evry=3)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_it_belongs_to_the_package_that_was_imported() -> None:
    code = """
import pytorch_lightning as pl, torch, madao, sys
from torch.utils.data import DataLoader, TensorDataset
from madao.integrations.lightning import PolicyCallback
assert issubclass(PolicyCallback, pl.Callback) and "lightning.pytorch" not in sys.modules
class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    def forward(self, images):
        return self.net(images)
    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
    def validation_step(self, batch, index):
        pass
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.rand(12, 1, 8, 8), torch.arange(12) % 3), 4)
callback = PolicyCallback(madao.Policy(), every=1)
pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    callbacks=callback).fit(Classifier(), loader, loader)
print("updates", callback.outer.updates)
"""
    result = run(code)
    assert "updates 3" in result.stdout, result.stderr


def test_without_lightning_the_error_says_how_to_get_it() -> None:
    result = run(
        "import sys; sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"
        "import madao.integrations.lightning"
    )
    assert "ImportError" in result.stderr
    assert "pip install 'madao[lightning]'" in result.stderr
