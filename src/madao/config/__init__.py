"""The settings of a run: frozen dataclasses, checked when they are made."""
