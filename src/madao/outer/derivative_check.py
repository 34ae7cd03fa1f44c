"""An outer step on a few images before training, so that a model without derivatives fails at once or never."""

import contextlib
import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from madao.distributed.group import ProcessGroup
from madao.errors import MadaoError, SharedError, first_line
from madao.hypergrad import FunctionalModel
from madao.hypergrad.autodiff.fallback import Fallback
from madao.outer.gathering import Batch
from madao.outer.outer_step import OuterRequest
from madao.outer.policy_optimizer import PolicyOptimizer


def check_derivatives(
    outer: PolicyOptimizer,
    train_batch: tuple[Tensor, ...],
    validation_batch: Batch,
    train_transform: Callable[..., Tensor] | None = None,
) -> list[str]:
    """Compute one hypergradient, and choose the kind of derivatives that works for the model.

    Nothing else changes: the policy keeps its parameters and its random state. Each process checks on its own.

    Args:
        outer: The optimizer of the policy.
        train_batch: A few images and their targets, as of `PolicyOptimizer.step`.
        validation_batch: A few images and their targets.
        train_transform: As of `PolicyOptimizer.step`.

    Returns:
        A line if the kind of derivatives changed, for people; otherwise nothing.

    Raises:
        SharedError: No kind of derivatives works.
    """
    policy, hvp, lines = outer.policy, outer.reference.hvp, list[str]()
    few = outer.reference.on_few(len(train_batch[0]))
    alone = dataclasses.replace(few, builder=dataclasses.replace(few.builder, ranks=ProcessGroup()))
    check = outer.compute.check_every > 0 and outer.solver.checkable
    state = outer.solver.prepare(None, FunctionalModel(outer.model).params, check)
    request = OuterRequest(train_transform, len(train_batch) - 2, check, state, seed=outer.seed)
    random_state = policy.get_extra_state()
    try:
        with hvp.saying(lines.append) if isinstance(hvp, Fallback) else contextlib.nullcontext():
            alone(request, (*train_batch, *validation_batch))
    except (MadaoError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a model can raise anything
        raise SharedError(
            f"the policy cannot learn with this model: an outer step fails ({first_line(error)}); choose another "
            "`model.name` or `data.size`, or an `augment.method` that does not learn, such as `uniform`"
        ) from error
    finally:
        policy.set_extra_state(random_state)
    return lines
