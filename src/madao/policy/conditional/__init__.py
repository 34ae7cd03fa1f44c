"""Conditional."""
