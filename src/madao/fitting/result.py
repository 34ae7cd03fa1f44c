"""The result of `madao.fit`."""

import dataclasses
import html
import os
from pathlib import Path

from torch import nn

from madao.policy import AugmentationPolicy


@dataclasses.dataclass(frozen=True, eq=False)
class FitResult:
    """The result of a training: the model, the policy, the errors and the run directory.

    Attributes:
        model: The trained model on the CPU, in evaluation mode. It takes images of any size, uint8 or float in [0, 1],
            and includes resizing and normalising.
        policy: The policy of the last epoch; None for base augmentation.
        run: The run directory.
        test_error: The error on the test set, between 0 and 1; None without a test set.
        validation_error: The error on the validation set; None without one.
        history: A row for each epoch: the columns of metrics.csv. `pandas.DataFrame(result.history)` is a table.
    """

    model: nn.Module
    policy: AugmentationPolicy | None
    run: Path
    test_error: float | None
    validation_error: float | None
    history: list[dict[str, float | None]]

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the report, one HTML file that opens offline, and return its path.

        Args:
            path: The file to write. By default report.html in the run directory.
        """
        from madao.report import read_run, write_report  # slow to import

        return write_report([read_run(self.run)], self.run / "report.html" if path is None else Path(path))[0]

    def __repr__(self) -> str:
        errors = {"test": self.test_error, "validation": self.validation_error}
        known = [f"{split} error {100 * error:.2f} %" for split, error in errors.items() if error is not None]
        return f"FitResult({', '.join([*known, f'{len(self.history)} epochs', str(self.run)])})"

    def _repr_html_(self) -> str:
        shown = getattr(self.policy, "_repr_html_", lambda: "")()
        return f"<p><b>{html.escape(repr(self))}</b></p>{shown}"
