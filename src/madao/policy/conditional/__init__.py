"""Policies whose numbers depend on the class or on the image."""
