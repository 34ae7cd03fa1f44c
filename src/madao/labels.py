"""Values of labels and masks with a special meaning."""

IGNORED = 255
"""The class of mask pixels that do not count: unlabelled ones, and those that come from outside the image."""
