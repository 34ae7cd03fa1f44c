"""Outer."""
