"""Training: what brings policies, hypergradients, models and data together."""

from madao.training.outer import OuterStep, PolicyOptimizer

__all__ = ["OuterStep", "PolicyOptimizer"]
