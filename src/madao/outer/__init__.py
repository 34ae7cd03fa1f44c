"""The outer problem: a policy learns from the validation loss, within any training loop."""

from madao.outer.compute_options import ComputeOptions
from madao.outer.outer_step import OuterStep
from madao.outer.policy_optimizer import PolicyOptimizer

__all__ = ["ComputeOptions", "OuterStep", "PolicyOptimizer"]
