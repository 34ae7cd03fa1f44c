"""Policies with nothing to learn."""
