"""Policies as transforms of other libraries, one module per target."""

from madao.export.registry import TARGETS, Target, export

__all__ = ["TARGETS", "Target", "export"]
