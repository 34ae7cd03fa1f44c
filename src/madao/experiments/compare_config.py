"""The settings of a comparison, and the plan that follows from them."""

import dataclasses
from pathlib import Path

from madao.config.train_config import TrainConfig
from madao.errors import UserError
from madao.experiments.magnitude_search import MAGNITUDES
from madao.experiments.table import cell_path


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """How RandAugment's magnitude is chosen: as in the paper at random, by validation error.

    Args:
        trials: Magnitudes that are tried; 0 takes augment.magnitude.
        seeds: Trainings of each, over whose mean validation error is chosen.
        storage: Optuna's URL, sqlite:///FILE or postgresql://…, where several machines share a search. By default this
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
    """What is compared.

    Args:
        methods: Names with commas between: base, uniform, randaugment, trivialaugment, autoaugment-cifar10, …,
            learned, and those of --variants. By default base, uniform, randaugment, learned and all variants.
        variants: A YAML file of methods of your own: names, and the settings that tell them from the learned policy.
        seeds: How many (3: seeds 0, 1 and 2), or which (0,1,7).
        jobs: Trainings at a time. More than one pays where a single one leaves the GPU idle; the table's times are
            then those of trainings that share it.
        out: The folder; its cells are run directories METHOD/SEED. By default runs/compare-RECIPE.
        export: Also write a JSON record of these methods: seeds, settings, versions, device, curves, errors.
        search: How RandAugment's magnitude is chosen.
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
    """What a command line asks for.

    Attributes:
        chosen: Its own settings.
        folder: Where the cells go.
        base: The settings all cells share.
        methods: Each one's settings.
        seeds: The seeds.
    """

    chosen: CompareConfig
    folder: Path
    base: TrainConfig
    methods: dict[str, TrainConfig]
    seeds: list[int]

    def cell(self, method: str, seed: int, magnitude: float | None = None) -> TrainConfig:
        """The settings of a cell; of RandAugment at a magnitude."""
        config = self.methods[method]
        if magnitude is not None:
            config = dataclasses.replace(config, augment=dataclasses.replace(config.augment, magnitude=magnitude))
        out = str(cell_path(self.folder, method, seed, magnitude))
        return dataclasses.replace(config, seed=seed, out=out, resume=True)
