"""Training: what brings policies, hypergradients, models and data together."""

from madao.outer.outer_step import OuterStep
from madao.outer.policy_optimizer import PolicyOptimizer

__all__ = ["OuterStep", "PolicyOptimizer"]
