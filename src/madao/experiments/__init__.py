"""Comparisons: methods over seeds, as `madao compare` trains and tabulates them."""
