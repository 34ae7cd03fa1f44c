"""Data sets by name, one per file."""
