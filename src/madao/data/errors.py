"""What the user can mend in the data."""


class DataError(ValueError):
    """A mistake in the data: one line that says what was found, what was expected and the remedy."""


class NotThereError(DataError):
    """A data set that is not where it was looked for, or not all of it."""
