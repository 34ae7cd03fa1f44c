"""Loggers: the scalars of a run in other services, one module for each."""
