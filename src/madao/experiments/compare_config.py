"""The settings of a comparison, and the plan that follows from them."""

import dataclasses
from pathlib import Path

from madao.config.train_config import TrainConfig
from madao.errors import UserError
from madao.experiments.magnitude_search import MAGNITUDES
from madao.experiments.table import run_path


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """How to choose RandAugment's magnitude: by random search on the validation error, as in the paper.

    Args:
        trials: Number of magnitudes to try; 0 uses augment.magnitude.
        seeds: Trainings for each magnitude; their mean validation error decides.
        storage: Optuna's URL, sqlite:///FILE or postgresql://…, if several machines share a search. By default this
            machine searches alone.
    """

    trials: int = 3
    seeds: int = 1
    storage: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("trials", 0), ("seeds", 1)):
            if getattr(self, name) < least:
                raise UserError(f"`search.{name}` must be at least {least}, got {getattr(self, name)}")
        if self.trials > MAGNITUDES:
            raise UserError(f"`search.trials` must be at most {MAGNITUDES}, all there are, got {self.trials}")


@dataclasses.dataclass(frozen=True)
class CompareConfig:
    """The methods and seeds of a comparison.

    Args:
        methods: Names with commas between: base, uniform, randaugment, trivialaugment, autoaugment-cifar10, …,
            learned, and those of --variants. By default base, uniform, randaugment, learned and all variants.
        variants: A YAML file of your own methods: names, and the settings that differ from the learned policy's.
        seeds: The number of seeds (3: seeds 0, 1 and 2), or their list (0,1,7).
        jobs: Trainings at a time. Several are worth it if one leaves the GPU idle; the table then has the times of
            trainings that share it.
        out: The folder of run directories METHOD/SEED. By default runs/compare-RECIPE.
        export: Also write a JSON record of these methods: seeds, settings, versions, device, curves, errors.
        search: How to choose RandAugment's magnitude.
    """

    methods: str | None = None
    variants: str | None = None
    seeds: int | str = 3
    jobs: int = 1
    out: str | None = None
    export: str | None = None
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UserError(f"`jobs` must be at least 1, got {self.jobs}")


@dataclasses.dataclass(frozen=True)
class Plan:
    """A comparison as a command line describes it: the settings that all runs share, and those of each method."""

    chosen: CompareConfig
    folder: Path
    base: TrainConfig
    methods: dict[str, TrainConfig]
    seeds: list[int]

    def run_config(self, method: str, seed: int, magnitude: float | None = None) -> TrainConfig:
        """Return the settings of a run; for RandAugment, those at a magnitude."""
        config = self.methods[method]
        if magnitude is not None:
            config = dataclasses.replace(config, augment=dataclasses.replace(config.augment, magnitude=magnitude))
        out = str(run_path(self.folder, method, seed, magnitude))
        return dataclasses.replace(config, seed=seed, out=out, resume=True)
