"""Data sets by name, one a file."""
