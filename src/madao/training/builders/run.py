"""A run, built from its configuration."""

from torch import nn

from madao.config.train_config import TrainConfig
from madao.training.builders.data import build_batches, build_splits
from madao.training.builders.environment import start_environment
from madao.training.builders.inner_step import build_inner_step
from madao.training.builders.model import build_network, build_optimizer, model_name, with_pretrained_statistics
from madao.training.builders.outer_loop import build_outer_loop
from madao.training.builders.policy import build_augmentation, build_policy
from madao.training.builders.task import build_task, check_policy
from madao.training.ema import WeightAverage
from madao.training.monitor.console import Console
from madao.training.monitor.metrics import EpochMetrics
from madao.training.monitor.profiler import Profiler
from madao.training.run.directory import RunDirectory, check_directory, run_directory
from madao.training.run.state import Run
from madao.training.splits import Splits, dataset_name


def build_run(
    config: TrainConfig,
    splits: Splits | None = None,
    title: str | None = None,
    *,
    network: nn.Module | None = None,
    quiet: bool = False,
) -> Run:
    """Set up everything that training needs: processes, images, model, policy, task and run directory.

    Args:
        config: The settings of the run.
        splits: The images, if they are loaded already. By default the images that the settings name.
        title: The name before each line of output. By default the name of the run directory.
        network: The model. By default the one that the settings name.
        quiet: Whether to print nothing.

    Raises:
        UserError: A setting, a file or the machine does not suit the run.

    Example:
        >>> run = build_run(TrainConfig(epochs=5, out="runs/digits"))  # doctest: +SKIP
        >>> Trainer(run).fit().test_error  # doctest: +SKIP
        0.012
    """
    # A misspelt name is an error before a folder that is taken.
    build_policy(config.augment, None, config.seed)
    if splits is None:
        dataset_name(config.data)
    environment = start_environment(config)
    device, ranks, autocast = environment.device, environment.ranks, environment.autocast
    check_directory(config, ranks)  # before the images are read, which may take a while
    splits, notes = build_splits(config, environment, splits)
    splits = with_pretrained_statistics(splits, config)
    name = model_name(config.model, splits, config.task) if network is None else type(network).__name__
    directory = RunDirectory(run_directory(config, splits.name, name), ranks.is_first)
    network = build_network(config, splits, environment, network)
    optimizer = build_optimizer(config.optimizer, network, device)
    profiler = Profiler(device, reads=not splits.in_memory)
    model, stepper = environment.fabric.setup(network, optimizer)
    policy, base_augmentation = build_augmentation(config, splits, device)
    ema = WeightAverage(network, config.ema) if config.ema else None
    task = build_task(config, splits, network, base_augmentation, ranks, autocast)
    check_policy(policy, task)
    train_batches = build_batches(config, environment, splits)
    outer_loop = build_outer_loop(
        config,
        policy=policy,
        network=network,
        task=task,
        base_augmentation=base_augmentation,
        splits=splits,
        train_batches=train_batches,
        profiler=profiler,
        autocast=autocast,
    )
    console = Console(
        title or directory.path.name,
        config.epochs * len(train_batches),
        speaks=ranks.is_first and not quiet,
        metric_name=task.metric_name,
        train_metric_name=task.train_metric_name,
    )
    inner_step = build_inner_step(
        config,
        environment,
        model=model,
        optimizer=stepper,
        task=task,
        base_augmentation=base_augmentation,
        policy=policy,
        train_batches=train_batches,
        outer_loop=outer_loop,
        say=console.say,
    )
    return Run(
        config=config,
        model_name=name,
        notes=notes,
        device=device,
        autocast=autocast,
        ranks=ranks,
        directory=directory,
        splits=splits,
        train_batches=train_batches,
        network=network,
        model=model,
        optimizer=optimizer,
        ema=ema,
        policy=policy,
        base_augmentation=base_augmentation,
        task=task,
        inner_step=inner_step,
        outer_loop=outer_loop,
        metrics=EpochMetrics(device, ranks),
        profiler=profiler,
        console=console,
    )
