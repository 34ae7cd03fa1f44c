"""Estimators, which turn q into ∂g/∂φ, and the baselines of the score function."""
