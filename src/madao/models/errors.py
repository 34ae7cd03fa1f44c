"""The mistakes a user can mend."""


class ModelError(ValueError):
    """A model cannot be built or used as asked. The message is one line and says what would help."""


class UnknownModel(ModelError):  # noqa: N818 - it is a kind of ModelError, and reads as what it says
    """No model goes by this name.

    Attributes:
        name: The name that came.
    """

    def __init__(self, name: str, hint: str = "") -> None:
        super().__init__(
            f"unknown model {name!r}; expected small-cnn, wrn-DEPTH-WIDTH (wrn-28-10), resnet18, "
            f"or another name of torchvision or timm{hint}"
        )
        self.name = name


class MissingPackage(ModelError):  # noqa: N818 - as above
    """The model is from a package that is not installed."""


def first_line(error: Exception) -> str:
    """What another library's error says, short enough for a message of one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
