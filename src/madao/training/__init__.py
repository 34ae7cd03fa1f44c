"""Training: what brings policies, hypergradients, models and data together."""

from madao.training.outer import PolicyOptimizer
from madao.training.outer_step import OuterStep

__all__ = ["OuterStep", "PolicyOptimizer"]
