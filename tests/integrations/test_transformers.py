"""The trainer, with models of the real library that are made here and not downloaded."""

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)
from transformers.trainer_utils import HPSearchBackend

import madao
from madao.integrations.transformers import POLICY_NAME, PolicyTrainer
from tests.helpers.policies import equal


class Images(Dataset[dict[str, Tensor]]):
    def __init__(self, count: int, seed: int, normalised: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.rand(count, 3, 8, 8, generator=generator)
        self.normalised = normalised

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        image = self.images[index]
        return {"pixel_values": normalise(image) if self.normalised else image, "labels": torch.tensor(index % 3)}


def normalise(images: Tensor) -> Tensor:
    return (images - 0.5) / 0.25


TRAIN, VALIDATION = Images(24, 0), Images(12, 1)
CLASSES = {0: "a", 1: "b", 2: "c"}


def vit(dropout: float = 0.0) -> ViTForImageClassification:
    set_seed(0)
    config = ViTConfig(
        image_size=8,
        patch_size=4,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=dropout,
        id2label=CLASSES,
    )
    return ViTForImageClassification(config)


def resnet() -> ResNetForImageClassification:
    set_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", id2label=CLASSES)
    return ResNetForImageClassification(config)


def arguments(folder: Path, kind: type[TrainingArguments] = TrainingArguments, **settings: Any) -> TrainingArguments:
    usual = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 6,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "logging_steps": 2,
    }
    return kind(**{**usual, **settings})


def learning(
    folder: Path,
    policy: madao.Policy,
    model: nn.Module,
    every: int = 2,
    train_images: int | None = None,
    trainer: type[PolicyTrainer] = PolicyTrainer,
    **keys: Any,
) -> PolicyTrainer:
    return trainer(
        model,
        arguments(folder, **keys),
        train_dataset=TRAIN,
        eval_dataset=VALIDATION,
        policy=policy,
        transform=normalise,
        train_images=train_images,
        settings={"every": every, "optimizer": torch.optim.Adam(policy.parameters(), lr=0.1)},
    )


def test_it_learns_and_logs(tmp_path: Path) -> None:
    policy = madao.Policy()
    trainer = learning(tmp_path, policy, vit(), num_train_epochs=6)
    trainer.train()
    assert trainer.outer is not None
    assert (trainer.outer.calls, trainer.outer.updates) == (24, 12)
    assert not equal(policy, madao.Policy())
    rows = [row for row in trainer.state.log_history if "policy/Rotate" in row]
    assert [row["step"] for row in rows] == list(range(2, 25, 2))
    assert all(row["policy/gradient_norm"] > 0 for row in rows)
    shares = [rows[-1][f"policy/{operation.name}"] for operation in policy.operations]
    assert shares == pytest.approx(policy.selection.mean(0).tolist())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_policy_that_changes_nothing_is_the_library_s_own_trainer(tmp_path: Path, accumulate: int) -> None:
    """Normalised by the trainer or by the data set: the same weights and the same evaluation, dropout and all."""
    settings: dict[str, Any] = {"gradient_accumulation_steps": accumulate, "eval_strategy": "epoch"}
    policy = madao.Policy()
    with torch.no_grad():
        policy.application_logits.fill_(-1000.0)
    ours = learning(tmp_path, policy, vit(0.5), 1, **settings)
    theirs = Trainer(
        vit(0.5),
        arguments(tmp_path, **settings),
        train_dataset=Images(24, 0, normalised=True),
        eval_dataset=Images(12, 1, normalised=True),
    )
    for trainer in (ours, theirs):
        set_seed(1)
        trainer.train()
    assert isinstance(ours.model, nn.Module)
    assert isinstance(theirs.model, nn.Module)
    assert equal(ours.model, theirs.model)
    assert ours.evaluate()["eval_loss"] == theirs.evaluate()["eval_loss"]
    assert ours.outer is not None
    assert ours.outer.updates == 8 // accumulate


def test_only_training_images_are_augmented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[Tensor, Tensor]] = []
    update = madao.PolicyOptimizer.update

    def spy(self: Any, train: Any, validation: Any) -> Any:
        taken.append((train[0], validation[0]))
        return update(self, train, validation)

    monkeypatch.setattr(madao.PolicyOptimizer, "update", spy)
    seen: dict[bool, list[Tensor]] = {True: [], False: []}

    def watch(model: nn.Module, arguments: Any, keywords: Any) -> None:
        if "labels" in keywords:  # outer steps have none
            seen[model.training].append(keywords["pixel_values"])

    model = vit()
    model.register_forward_pre_hook(watch, with_kwargs=True)
    trainer = learning(tmp_path, madao.Policy(), model, 4, num_train_epochs=1)
    trainer.train()
    trainer.evaluate()
    raw = {tuple(normalise(image).flatten().tolist()) for image in TRAIN.images}
    images = torch.cat(seen[True])
    unchanged = sum(tuple(image.flatten().tolist()) in raw for image in images)
    assert len(images) == 24
    assert unchanged < 12
    assert torch.equal(torch.cat(seen[False]), normalise(VALIDATION.images))
    ((inner, outer),) = taken
    assert len(inner) == 6
    assert all(any(torch.equal(image, one) for one in TRAIN.images) for image in inner)
    assert all(any(torch.equal(image, one) for one in VALIDATION.images) for image in outer)


def test_it_resumes_exactly_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    policies, models = [], []
    for resume in (None, str(tmp_path / "checkpoint-5")):
        # A ViT would not do: transformers 5.22 saves its weights under names that it does not find when it resumes.
        policy, model = madao.Policy(), resnet()
        trainer = learning(
            tmp_path, policy, model, 3, 20, num_train_epochs=4, save_strategy="steps", save_steps=5, max_steps=12
        )
        trainer.train(resume_from_checkpoint=resume)
        assert trainer.outer is not None
        assert (trainer.outer.calls, trainer.outer.updates) == (12, 4)
        policies.append(policy)
        models.append(model)
    assert not equal(policies[0], madao.Policy())
    assert equal(*policies)
    assert equal(*models)
    images = torch.rand(5, 3, 8, 8)
    assert torch.equal(policies[0](images), policies[1](images))


def test_the_last_checkpoint_is_found(tmp_path: Path) -> None:
    learning(tmp_path, madao.Policy(), vit(), save_strategy="epoch").train()
    trainer = learning(tmp_path, policy := madao.Policy(), vit())
    trainer.train(resume_from_checkpoint=True)
    saved = torch.load(tmp_path / "checkpoint-8" / POLICY_NAME, weights_only=True)
    assert torch.equal(policy.selection_logits, saved["policy"]["selection_logits"])
    assert saved["outer"]["calls"] == 8


def test_a_checkpoint_has_its_policy_whole_before_the_rest(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []

    class Killed(PolicyTrainer):
        def save_model(self, *_: Any, **__: Any) -> None:
            found.append(torch.load(tmp_path / "checkpoint-4" / POLICY_NAME, weights_only=True))
            raise KeyboardInterrupt

    trainer = learning(tmp_path, madao.Policy(), vit(), save_strategy="epoch", trainer=Killed)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert found[0]["outer"]["calls"] == 4
    assert [path.name for path in (tmp_path / "checkpoint-4").iterdir()] == [POLICY_NAME]


def test_a_policy_half_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = learning(tmp_path, madao.Policy(), vit(), save_strategy="epoch")

    save = torch.save

    def killed(content: Any, file: Any) -> None:
        path = Path(getattr(file, "name", file))
        if POLICY_NAME not in path.name:
            save(content, file)
            return
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert not (tmp_path / "checkpoint-4" / POLICY_NAME).exists()


def test_in_a_search_the_policy_is_in_the_checkpoint_of_the_trial(tmp_path: Path) -> None:
    trainer = learning(tmp_path, madao.Policy(), vit(), num_train_epochs=1)
    trainer.train()
    trainer.hp_search_backend, trainer.hp_name = HPSearchBackend.OPTUNA, None  # type: ignore[assignment]
    assert isinstance(trainer.model, nn.Module)
    trainer._save_checkpoint(trainer.model, types.SimpleNamespace(number=7))
    trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
    assert [path.parent.relative_to(tmp_path) for path in tmp_path.rglob(POLICY_NAME)] == [Path("run-7/checkpoint-4")]
    assert (tmp_path / "run-7" / "checkpoint-4" / "trainer_state.json").exists()


class OnSecondNode(TrainingArguments):
    process_index = property(lambda _: 8)
    local_process_index = property(lambda _: 0)


@pytest.mark.parametrize("each_node", [False, True])
def test_every_process_gathers_and_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each_node: bool) -> None:
    """The first process of the second node writes only if each node is to have checkpoints."""
    trainer = learning(tmp_path, madao.Policy(), vit(), num_train_epochs=1, save_on_each_node=each_node)
    trainer.train()
    assert isinstance(trainer.model, nn.Module)
    gathered: list[int] = []
    state = trainer._learner.state_dict
    trainer._learner.state_dict = lambda: gathered.append(1) or state()  # type: ignore[func-returns-value,method-assign]
    trainer.args.__class__ = OnSecondNode
    monkeypatch.setattr(Trainer, "_save_checkpoint", lambda *_: None)
    trainer._save_checkpoint(trainer.model, None)
    assert gathered == [1]
    assert (tmp_path / "checkpoint-4" / POLICY_NAME).exists() == each_node


@pytest.mark.parametrize("missing", [POLICY_NAME, "trainer_state.json"])
def test_a_checkpoint_that_is_not_whole_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    learning(tmp_path, madao.Policy(), resnet(), save_strategy="epoch").train()
    (tmp_path / "checkpoint-8" / missing).unlink()
    trainer = learning(tmp_path, madao.Policy(), resnet(), max_steps=4)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.outer is not None
    assert (trainer.state.global_step, trainer.outer.calls) == (4, 4)
    assert f"checkpoint-8 has no {missing}" in caplog.text
    for number in (4, 8):
        (tmp_path / f"checkpoint-{number}" / missing).unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError, match=missing):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.parametrize("folder", ["", "none"])
def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path: Path, folder: str) -> None:
    trainer = learning(tmp_path / folder, madao.Policy(), vit())
    with pytest.raises(ValueError, match="checkpoint"):
        trainer.train(resume_from_checkpoint=True)
    assert trainer.outer is None


def test_a_checkpoint_without_a_policy_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-3").mkdir()
    with pytest.raises(FileNotFoundError, match="checkpoint-3"):
        learning(tmp_path, madao.Policy(), vit()).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


class TwoDevices(TrainingArguments):
    n_gpu = property(lambda _: 2)


def test_several_devices_of_one_process_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="torchrun"):
        learning(tmp_path, madao.Policy(), vit(), kind=TwoDevices)


def test_weights_in_parts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Trainer.__init__

    def sharded(self: Trainer, *arguments: Any, **keywords: Any) -> None:
        made(self, *arguments, **keywords)
        self.is_fsdp_enabled = True

    monkeypatch.setattr(Trainer, "__init__", sharded)
    with pytest.raises(ValueError, match="FSDP"):
        learning(tmp_path, madao.Policy(), vit())


def test_without_transformers_the_error_says_how_to_get_it() -> None:
    code = "import sys; sys.modules['transformers'] = None\nimport madao.integrations.transformers"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'madao[transformers]'" in result.stderr
