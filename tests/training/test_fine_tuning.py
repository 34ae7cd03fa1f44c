"""Runs that start from a state dict on the disk."""

import dataclasses
from pathlib import Path

import pytest
import torch

from madao.config.aliases import current_config
from madao.config.train_config import AugmentConfig, ModelConfig, OptimizerConfig, OuterConfig, TrainConfig, to_dict
from madao.models import build
from madao.training.splits import Splits
from tests.helpers.training import assert_resumes, built, settings, splits, trained


def images() -> Splits:
    return splits(channels=3, side=32, count=32)


def fine_tuning(out: Path, name: str, **changes: object) -> TrainConfig:
    """Settings of a run from the weights of a model for seven classes."""
    weights = out.parent / f"{name.replace('/', '-')}.pt"
    if not weights.exists():
        torch.manual_seed(1)
        torch.save(build(name, classes=7, image_size=32).state_dict(), weights)
    chosen = {
        "model": ModelConfig(name, str(weights), stem="small" if name == "resnet18" else "auto"),
        "optimizer": OptimizerConfig(name="adamw", lr=1e-3, head_lr_scale=10, weight_decay=0.05),
        "outer": OuterConfig(every=1, warmup=0, batch_size=8),
        "augment": AugmentConfig(padding=2),
        "epochs": 2,
        "batch_size": 16,
    }
    return dataclasses.replace(settings(out), **{**chosen, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["resnet18", "timm/test_vit4", "timm/test_convnext"])
def test_a_policy_learns_while_a_pretrained_model_is_tuned(name: str, tmp_path: Path) -> None:
    config = fine_tuning(tmp_path / "run", name)
    run = built(config, images())
    weights = torch.load(tmp_path / f"{name.replace('/', '-')}.pt")
    own = run.network.state_dict()
    assert sum(torch.equal(own[key], value) for key, value in weights.items()) >= len(weights) - 2
    assert [group.get("lr_scale", 1) for group in run.optimizer.param_groups] == [1, 10]
    after = trained(dataclasses.replace(config, out=str(tmp_path / "trained")), images())
    assert after.outer_loop is not None
    assert after.outer_loop.outer.updates == 4
    rates = [group["lr"] for group in after.optimizer.param_groups]
    assert rates[1] == pytest.approx(10 * rates[0])
    assert isinstance(after.optimizer, torch.optim.AdamW)


def test_a_tuned_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    def config(out: Path) -> TrainConfig:
        return dataclasses.replace(settings(out), optimizer=OptimizerConfig(name="adamw", lr=0.01, head_lr_scale=3))

    assert_resumes(tmp_path, config)


def test_frozen_norms_stay_as_they_were_pretrained(tmp_path: Path) -> None:
    config = fine_tuning(tmp_path / "run", "resnet18")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, freeze_norm=True))
    weights = torch.load(tmp_path / "resnet18.pt")
    after = trained(config, images()).network.state_dict()
    frozen = [key for key in weights if "bn" in key or "downsample.1" in key]
    assert len(frozen) > 50
    assert all(torch.equal(after[key], weights[key]) for key in frozen)
    assert not torch.equal(after["conv1.weight"], weights["conv1.weight"])


def test_images_are_normalised_as_the_weights_expect(tmp_path: Path) -> None:
    def normalised(statistics: str | None, pretrained: bool = True) -> tuple[float, ...]:
        config = fine_tuning(tmp_path / "run", "resnet18", augment=AugmentConfig(statistics=statistics))  # type: ignore[arg-type]
        if not pretrained:
            config = dataclasses.replace(config, model=ModelConfig("resnet18"))
        mean = built(config, images()).base_augmentation.mean
        assert mean is not None
        return tuple(mean)

    imagenet, own = (0.485, 0.456, 0.406), images().mean
    assert normalised(None) == normalised("pretrained") == normalised("pretrained", pretrained=False) == imagenet
    assert normalised("data") == normalised(None, pretrained=False) == own


def test_runs_from_before_there_was_a_choice_keep_the_statistics_of_their_data() -> None:
    def saved(pretrained: bool) -> dict[str, object]:
        plain = to_dict(TrainConfig(model=ModelConfig(pretrained=pretrained)))
        del plain["augment"]["statistics"]
        return plain

    assert current_config(saved(True))["augment"]["statistics"] == "data"
    assert "statistics" not in current_config(saved(False))["augment"]
    assert "statistics" not in current_config({"model": {"pretrained": True}, "augment": {"stages": 1}})["augment"]
