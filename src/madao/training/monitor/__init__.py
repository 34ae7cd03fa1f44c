"""Reports on a run: console, loggers, metrics, profiler and advice."""
