"""Autodiff."""
