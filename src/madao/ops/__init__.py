"""Image operations as pure functions of (images, magnitude, sign), without randomness."""

from madao.ops.dispatch import dispatch
from madao.ops.registry import OPERATIONS, PAPER, Operation, choose, find, register

__all__ = ["OPERATIONS", "PAPER", "Operation", "choose", "dispatch", "find", "register"]
