"""Errors that users can fix.

A message is one line: the value found, the value expected and the remedy. It names settings in backticks
(`data.size`, `batch_size=64`); the command line shows them as flags.
"""


class MadaoError(Exception):
    """The root of all errors that madao raises on purpose. Commands show them as one line and exit with 2."""


class UserError(MadaoError):
    """A setting, a file or a machine that cannot do what was asked."""


class DamagedFileError(UserError):
    """A file that is damaged or of another kind."""


class SharedError(UserError):
    """An error that every process of a training raises, so that only the first one has to report it."""


class DataError(MadaoError, ValueError):
    """A mistake in the data."""


class DatasetNotFoundError(DataError):
    """A data set that is missing or incomplete."""


class ModelError(MadaoError, ValueError):
    """A model that cannot be built or used as asked."""


class UnknownModelError(ModelError):
    """A model name that is unknown.

    Attributes:
        name: The unknown name.
    """

    def __init__(self, name: str, hint: str = "") -> None:
        super().__init__(
            f"unknown model {name!r}; expected small-cnn, wrn-DEPTH-WIDTH (wrn-28-10), resnet18, "
            f"or another name of torchvision or timm{hint}"
        )
        self.name = name


class MissingPackageError(ModelError):
    """A model from a package that is not installed."""


class PolicyFileError(MadaoError, ValueError):
    """A policy file that cannot be used. The message names the field and the remedy."""


class ReportError(MadaoError):
    """Run directories that cannot be reported on."""


def first_line(error: Exception) -> str:
    """Return the first line of another library's error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
