"""Comparisons of methods over seeds, for `madao compare`."""
