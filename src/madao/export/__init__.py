"""Policies as transforms of other libraries: one file a target, one law for all of them."""

from madao.export.registry import TARGETS, Target, export

__all__ = ["TARGETS", "Target", "export"]
