"""What a run writes about itself beside its metrics: the images it was given, and where its policy has been."""

from pathlib import Path

from madao.config.train_config import TrainConfig
from madao.policy import AugmentationPolicy, BaseAugmentation, ClassPolicy, FrozenPolicy, Policy
from madao.training.build import default_model
from madao.training.run import samples
from madao.training.run.directory import RunDirectory
from madao.training.splits import Splits


def run_directory(config: TrainConfig, splits: Splits) -> Path:
    """Where a run goes: what `out` says, or a name made of what is run."""
    if config.out is not None:
        return Path(config.out)
    condition = "" if config.augment.conditional_on == "none" else f"-{config.augment.conditional_on}"
    method = Path(config.augment.method).stem + condition
    planted = "" if config.data.shift == "none" else f"-{config.data.shift}"
    model = (config.model.name or default_model(splits.size, config.task.name)).replace("/", "-")
    task = "moco-" if config.task.name == "moco" else ""
    return Path("runs") / f"{splits.name}{planted}-{task}{model}-{method}-{config.seed}"


def record_images(directory: RunDirectory, splits: Splits, standard: BaseAugmentation) -> None:
    """Classes, statistics, which images were set aside, and a few of the others to look at."""
    indices = splits.validation_indices
    split = {
        "classes": list(splits.classes),
        "mean": splits.mean,
        "std": splits.std,
        "validation": None if indices is None else indices.tolist(),
        "skipped": splits.skipped,
    }
    directory.write_json("split.json", split)
    directory.write(samples.FILE, samples.archive(splits.train, standard))


def record_policy(directory: RunDirectory, policy: AugmentationPolicy | None, epoch: int, step: int) -> None:
    """The policy as it is now, and where it has been."""
    if isinstance(policy, Policy | FrozenPolicy):
        directory.write("policy.json", policy.spec().dumps())
    if isinstance(policy, Policy):
        if step == 0:
            names = [operation.name for operation in policy.operations]
            directory.append_json("trajectory.jsonl", {"epoch": 0, "step": 0, "operations": names})
        learned = {name: getattr(policy, name).tolist() for name in ("selection", "application", "magnitude")}
        if isinstance(policy, ClassPolicy):
            learned["class_selection"] = policy.class_selection.detach().mean(0).tolist()
        directory.append_json("trajectory.jsonl", {"epoch": epoch, "step": step, **learned})
