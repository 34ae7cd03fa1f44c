"""Builders: each builds one part of a run from its configuration."""
