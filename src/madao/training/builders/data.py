"""The images of a run, and the order in which its processes see them."""

from madao.config.train_config import TrainConfig
from madao.data import Batches
from madao.distributed.launch import rank_zero_first
from madao.errors import SharedError
from madao.text import alternatives
from madao.training.builders.environment import Environment
from madao.training.splits import Splits, load_splits, on_device


def build_splits(config: TrainConfig, environment: Environment, splits: Splits | None) -> tuple[Splits, list[str]]:
    """Load the images unless `splits` has them, and move them to the device.

    Returns:
        The images, and lines about them for people.

    Raises:
        SharedError: The settings need validation images, and there are none.
    """
    if splits is None:
        splits = rank_zero_first(environment.ranks, lambda: load_splits(config.data), again=True)
    if splits.validation is None and config.eval_checkpoint == "best":
        raise SharedError(
            "`eval_checkpoint=best` chooses by validation images, and `data.val_fraction=0` sets none aside"
        )
    return on_device(splits, config.data, environment.device)


def build_batches(config: TrainConfig, environment: Environment, splits: Splits) -> Batches:
    """Build the batches of training images.

    Raises:
        SharedError: A batch is too small to be shared by all processes.
    """
    ranks = environment.ranks
    batches = Batches(
        splits.train,
        config.batch_size,
        seed=config.seed,
        device=environment.device,
        workers=config.data.processes,
        rank=ranks.rank,
        world=ranks.world,
    )
    if batches.batch_size < config.accumulate * ranks.world:
        lower = {"devices": ranks.world, "accumulate": config.accumulate}
        raise SharedError(
            f"a batch of {batches.batch_size} images cannot be shared by {ranks.world} processes, each in "
            f"{config.accumulate} parts; raise `batch_size`, or lower "
            f"{alternatives([f'`{name}`' for name, value in lower.items() if value > 1])}"
        )
    return batches
