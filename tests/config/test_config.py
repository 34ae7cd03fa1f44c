"""Settings: what is refused, and that they survive being written down."""

import dataclasses
import json
import math
from typing import Any

import pytest
import yaml

from madao.config.train_config import (
    NOT_OPTIONS,
    AugmentConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    OuterConfig,
    TrainConfig,
    free_settings,
    from_dict,
    to_dict,
)
from madao.errors import UserError

PARTS: dict[str, type[Any]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "augment": AugmentConfig,
    "optimizer": OptimizerConfig,
    "outer": OuterConfig,
}
FULL = TrainConfig(
    data=DataConfig(name="folder", root="/é", download=True, size=64, val_fraction=0.25, workers=0, on_error="skip"),
    model=ModelConfig(name="wrn-28-2", pretrained="weights.pt", stem="small"),
    augment=AugmentConfig(method="uniform", limits={"Rotate": 10.0}, exclude=["Invert"], flip=False, cutout=16),
    optimizer=OptimizerConfig(lr=1e-5, schedule="step", milestones=[1.5, 3], nesterov=True, clip=1.0),
    outer=OuterConfig(solver="neumann", warmup=2.0, batch_size=64, decay=True),
    epochs=5,
    batch_size=96,
    accumulate=3,
    precision="bf16",
    ema=0.999,
    out="runs/a",
    resume=True,
)
LEAST = {
    "data.size": 1,
    "data.max_images": 1,
    "data.workers": 0,
    "data.cache_gib": 0,
    "augment.stages": 1,
    "augment.padding": 0,
    "augment.cutout": 0,
    "optimizer.lr": 0,
    "optimizer.momentum": 0,
    "optimizer.weight_decay": 0,
    "optimizer.warmup": 0,
    "optimizer.restart_factor": 1,
    "outer.every": 1,
    "outer.batch_size": 1,
    "outer.train_batch_size": 1,
    "outer.curvature_batch_size": 1,
    "outer.pathwise_batch_size": 1,
    "outer.microbatch": 1,
    "outer.warmup": 0,
    "outer.lr": 0,
    "outer.steps": 0,
    "outer.init_decay": 0,
    "epochs": 1,
    "batch_size": 1,
    "accumulate": 1,
    "evaluate_every": 1,
    "checkpoint_every": 1,
    "checkpoint_minutes": 0,
}
ABOVE_ZERO = ("optimizer.restart", "optimizer.clip", "outer.scale", "outer.damping")
BETWEEN = ("augment.scale", "augment.init_magnitude")
IN = ("data.val_fraction", "augment.magnitude", "augment.magnitude_jitter", "optimizer.label_smoothing", "ema")
BAD = [
    *((key, value) for key, least in LEAST.items() for value in (least - 1, least - 0.001, -math.inf, math.nan)),
    *((key, value) for key in ABOVE_ZERO for value in (0, -1, math.nan)),
    *((key, value) for key in BETWEEN for value in (0, -0.1, 1.1, math.nan)),
    ("data.val_fraction", 1),
    ("augment.init_magnitude", 1),
    ("ema", 1),
    ("outer.init_decay", math.inf),
    *((key, value) for key in IN for value in (-0.001, 1.001, math.nan)),
]
GOOD = [
    *LEAST.items(),
    *((key, 1e-9) for key in (*ABOVE_ZERO, *BETWEEN)),
    *((key, 1 - 1e-9) for key in BETWEEN),
    *((key, value) for key in IN for value in (0, 0.5)),
    ("augment.magnitude", 1),
    ("augment.magnitude_jitter", 1),
    ("augment.scale", 1),
]


def build(key: str, value: Any) -> object:
    """The settings, all default but one."""
    part, _, name = key.rpartition(".")
    kind = PARTS[part] if part else TrainConfig
    found: object = kind(**{name: value})
    return found


def refusal(key: str, value: Any) -> str:
    with pytest.raises(UserError) as caught:
        build(key, value)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_bad_value_is_refused_in_one_line_that_names_its_flag(key: str, value: float) -> None:
    text = refusal(key, value)
    assert text.startswith(f"`{key}` must ")
    assert "got " in text
    if key in LEAST and not value > LEAST[key]:
        assert text == f"`{key}` must be at least {LEAST[key]}, got {value}"


@pytest.mark.parametrize(("key", "value"), BAD)
def test_the_refusal_names_what_came(key: str, value: float) -> None:
    assert refusal(key, value).endswith(f"got {value}")


@pytest.mark.parametrize(("key", "value"), GOOD)
def test_the_last_good_value_is_taken(key: str, value: float) -> None:
    assert getattr(build(key, value), key.rpartition(".")[2]) == value


def test_values_that_do_not_fit_together_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^`accumulate` must divide `batch_size`, got 3 and 128$"):
        TrainConfig(accumulate=3)
    with pytest.raises(UserError, match=r"^`outer.init_decay` needs `outer.optimizer=adam`, got rmsprop$"):
        OuterConfig(optimizer="rmsprop", init_decay=1.0)
    with pytest.raises(UserError, match=r"^`optimizer.nesterov` needs `optimizer.momentum` above 0$"):
        OptimizerConfig(nesterov=True, momentum=0)
    with pytest.raises(UserError, match=r"^`optimizer.milestones` needs `optimizer.schedule=step`, got cosine$"):
        OptimizerConfig(milestones=[3])
    TrainConfig(accumulate=4)
    OptimizerConfig(nesterov=True)
    OptimizerConfig(milestones=[3], schedule="step")


def test_defaults_are_good_and_settings_cannot_be_changed() -> None:
    config = TrainConfig()
    for settings in (config, config.data, config.augment, config.optimizer, config.outer, config.model):
        with pytest.raises(dataclasses.FrozenInstanceError):
            settings.epochs = 3  # type: ignore[misc, union-attr]


def test_workers_are_one_a_core_and_at_most_four(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((None, 1), (1, 1), (3, 3), (64, 4)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert DataConfig().processes == expected
        assert DataConfig(workers=0).processes == 0
        assert DataConfig(workers=9).processes == 9


@pytest.mark.parametrize("config", [TrainConfig(), FULL])
def test_settings_survive_being_written_down(config: TrainConfig) -> None:
    plain = to_dict(config)
    assert from_dict(plain) == config
    assert from_dict(json.loads(json.dumps(plain))) == config
    assert from_dict(yaml.safe_load(yaml.safe_dump(plain, allow_unicode=True))) == config


def test_what_is_written_down_is_a_copy() -> None:
    plain = to_dict(FULL)
    plain["augment"]["limits"]["Rotate"] = 99
    plain["augment"]["exclude"].append("Solarize")
    assert FULL.augment.limits == {"Rotate": 10.0}
    assert FULL.augment.exclude == ["Invert"]


def test_settings_that_are_not_there_have_their_defaults() -> None:
    assert from_dict({}) == TrainConfig()
    assert from_dict({"epochs": 7, "data": {"size": 9}}) == TrainConfig(epochs=7, data=DataConfig(size=9))


@pytest.mark.parametrize(
    ("plain", "named"),
    [
        ({"epoks": 3}, "epoks"),
        ({"optimizer": {"lr": 0.1, "warm": 3}}, "warm"),
        ({"outer": {"": 1}}, "outer."),
        ({"data": None}, "`data`"),
        ({"model": ["resnet18"]}, "`model`"),
        ({"epochs": "many"}, "'many'"),
        ({3: 4}, "'3'"),
    ],
)
def test_settings_nobody_knows_are_refused_in_one_line(plain: dict[str, Any], named: str) -> None:
    with pytest.raises(
        UserError, match=r"^these settings are damaged, or were written by another version of madao: "
    ) as caught:
        from_dict(plain)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_read_is_checked() -> None:
    with pytest.raises(UserError, match=r"^`epochs` must be at least 1, got 0$"):
        from_dict({"epochs": 0})
    with pytest.raises(UserError, match=r"^`data.val_fraction` must be at least 0 and below 1, got 1.5$"):
        from_dict({"data": {"validation": 1.5}})


def test_the_settings_that_do_not_affect_a_result() -> None:
    places = {"out", "resume", "device", "devices", "num_nodes", "data.root", "data.workers", "data.decode"}
    habits = {"logger", "checkpoint_every", "checkpoint_minutes", "data.cache_gib"}
    speed = {f"speed.{name}" for name in ("kernels", "graph", "compile", "benchmark")}
    assert free_settings() == places | habits | speed
    assert free_settings("skip") == free_settings() - {"data.cache_gib"}


def test_madao_train_has_sixty_one_options() -> None:
    parts = [getattr(TrainConfig(), name) for name in to_dict(TrainConfig())]
    count = sum(len(dataclasses.fields(part)) if dataclasses.is_dataclass(part) else 1 for part in parts)
    assert count - len(NOT_OPTIONS) + len(("config", "recipe")) == 61
