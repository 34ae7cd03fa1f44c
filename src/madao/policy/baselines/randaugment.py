"""RandAugment (Cubuk et al., 2020)."""

from collections.abc import Iterable

from madao.ops import PAPER, Operation, choose
from madao.ops.geometric import Fill
from madao.policy.baselines.uniform import uniform_spec
from madao.policy.frozen import FrozenPolicy


class RandAugment(FrozenPolicy):
    """`n` operations in a row, equally likely, always applied, all at magnitude `m`: level 9 of 30 is m = 0.3.

    The operations are the fourteen of the MADAO paper, with `Invert` and without the identity. Other arguments are
    those of `Policy`.
    """

    def __init__(
        self,
        n: int = 2,
        m: float = 0.3,
        operations: Iterable[str | Operation] = PAPER,
        fill: Fill = 0.0,
        seed: int = 0,
    ) -> None:
        if not 0 <= m <= 1:
            raise ValueError(f"m is a magnitude in [0, 1], got {m!r}; level 9 of RandAugment's 30 is m = 9 / 30 = 0.3")
        super().__init__(uniform_spec(choose(operations), n, 1.0, m, fill), seed)
