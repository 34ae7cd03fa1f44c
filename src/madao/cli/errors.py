"""A mistake the user can mend."""


class UserError(Exception):
    """Shown as one line, without a traceback; the exit code is 2."""
