"""A run on disk: its directory, checkpoints, state and result."""
