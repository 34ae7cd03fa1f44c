"""Learning rates as pure functions of progress."""

import math

from madao.config.train_config import OptimizerConfig


def learning_rate(config: OptimizerConfig, epoch: float, epochs: float) -> float:
    """Return the learning rate after `epoch` of `epochs` epochs; `epoch` may be a fraction.

    It begins with a linear warm-up. Then it follows `config.schedule`:

    - cosine: lr · (1 + cos πt) / 2, where t is the finished fraction of the present cycle (Loshchilov & Hutter, 2017);
    - step: a tenth after each milestone;
    - constant.
    """
    if epoch < config.warmup:
        return config.lr * epoch / config.warmup
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "step":
        return config.lr * 0.1 ** sum(epoch >= milestone for milestone in config.milestones)
    return config.lr * cosine(_part_of_cycle(config, epoch - config.warmup, epochs - config.warmup))


def cosine(part: float) -> float:
    """Return (1 + cos π part) / 2: 1 at part 0, 0 at part 1."""
    return (1 + math.cos(math.pi * min(max(part, 0.0), 1.0))) / 2


def _part_of_cycle(config: OptimizerConfig, epoch: float, epochs: float) -> float:
    if config.restart is None:
        return epoch / max(epochs, 1e-9)
    length = config.restart
    while epoch >= length:
        epoch, length = epoch - length, length * config.restart_factor
    return epoch / length
