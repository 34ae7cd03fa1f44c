"""A training that several processes share in tests. Each process saves every number of its outer steps.

python -m tests.helpers.training_processes FOLDER RANK WORLD
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from madao.distributed.group import ProcessGroup
from madao.distributed.sampling import shard_of
from madao.hypergrad import (
    ClassMean,
    ConjugateGradient,
    Deflated,
    GaussNewton,
    Identity,
    Influence,
    LeaveOneOut,
    Neumann,
    Relaxed,
    SameLoss,
    Unaugmented,
)
from madao.hypergrad.hypergradient import pending_hypergradient
from madao.outer import outer_gradient
from madao.policy import BaseAugmentation, ClassPolicy, ImagePolicy, Policy
from madao.tasks import Classification
from madao.training.inner_step import InnerStep
from tests.helpers.outer_steps import policy_optimizer

CASES: dict[str, dict[str, Any]] = {
    "influence, deflated": {"solver": Deflated(4), "estimator": Influence(LeaveOneOut())},
    "influence, gauss-newton": {"solver": GaussNewton(3, 0.1), "estimator": Influence(LeaveOneOut()), "microbatch": 4},
    "influence, same loss": {
        "solver": Deflated(4),
        "estimator": Influence(SameLoss()),
        "microbatch": 4,
    },
    "influence, v itself": {"solver": Identity(1.0), "estimator": Influence(ClassMean())},
    "influence, conjugate gradients": {
        "solver": ConjugateGradient(steps=3, damping=1.0),
        "estimator": Influence(Unaugmented()),
        "microbatch": 3,
    },
    "a policy each class": {"classes": 3, "draws": 2},
    "a policy each image": {"by_image": True, "draws": 2},
    "relaxed, neumann": {"solver": Neumann(3, 0.01), "estimator": Relaxed(), "inner_mode": "train"},
}
BATCH, VALIDATION, STEPS = 13, 11, 60  # not divisible by the numbers of processes


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.GroupNorm(2, 6),
        nn.Tanh(),
        nn.Conv2d(6, 4, 3, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 3),
    ).double()


def batch(number: int, count: int, ranks: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Return the part of a batch that belongs to this process."""
    generator = torch.Generator().manual_seed(number)
    images = torch.rand(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (count,), generator=generator)
    place = shard_of(count, ranks)
    return images[place.start : place.stop], labels[place.start : place.stop]


def train(case: str) -> dict[str, Any]:
    """Take sixty steps with an outer step at every third, and return the results."""
    ranks, model = ProcessGroup.current(), network()
    settings = dict(CASES[case])
    classes, by_image = settings.pop("classes", None), settings.pop("by_image", False)
    policy = (ImagePolicy(seed=1) if by_image else ClassPolicy(classes, seed=1) if classes else Policy(seed=1)).double()
    standard = BaseAugmentation(padding=1, cutout=2, flip=True, seed=2)
    shared = DistributedDataParallel(model) if ranks.world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    outer = policy_optimizer(
        policy,
        model,
        every=3,
        optimizer=torch.optim.Adam(policy.parameters(), lr=0.05, betas=(0.0, 0.99)),
        weight_decay=1e-3,
        **settings,
    )
    step = InnerStep(
        shared,
        Classification(),
        backward=torch.Tensor.backward,
        optimizer=optimizer,
        base_augmentation=standard,
        policy=policy,
        accumulate=2,
        shard=shard_of(BATCH, ranks),
        world=ranks.world,
    )
    seen: list[dict[str, Any]] = []

    summed, all_reduce = [0], dist.all_reduce

    def counted(tensor: Tensor, *settings: Any) -> Any:
        summed[0] += tensor.numel()
        return all_reduce(tensor, *settings)

    def spied(*arguments: Any, **settings: Any) -> Any:
        before = summed[0]
        found = pending_hypergradient(*arguments, **{**settings, "keep": True})
        numbers = {"numbers": found.numbers, "summed": summed[0] - before}
        seen.append({"q": found.solution, "grads": found.grads, **numbers})
        return found

    # Spies in place of functions; every case of a process sets its own.
    setattr(dist, "all_reduce", counted)  # noqa: B010
    setattr(outer_gradient, "pending_hypergradient", spied)  # noqa: B010
    for number in range(STEPS):
        trained = step(*batch(number, BATCH, ranks), True)
        holes = trained.draw.hole_y, trained.draw.hole_x
        train_batch = trained.cropped, trained.targets, *holes
        outer.step(train_batch, batch(1000 + number, VALIDATION, ranks), standard.after_policy)
    setattr(dist, "all_reduce", all_reduce)  # noqa: B010
    assert outer.updates == STEPS // 3, (case, outer.skipped)
    return {"seen": seen, "weights": model.state_dict(), "policy": dict(policy.named_parameters())}


def main() -> None:
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", f"file://{folder / f'store-{world}'}", rank=rank, world_size=world)
    torch.save({case: train(case) for case in CASES}, folder / f"{world}-{rank}.pt")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
