"""`madao predict`: classify image files with a trained model."""

import contextlib
import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from madao.cli.parser import call
from madao.config.train_config import DataConfig
from madao.errors import UserError
from madao.files import replacing
from madao.inference import load_model
from madao.inference.predict import Prediction, expand_paths, predict_files
from madao.text import counted, printable
from madao.training.builders.environment import pick_device
from madao.training.interrupt import Interrupted, stop_requests

_WIDEST = 60
"""Characters up to which paths are padded in a table."""


def command(arguments: list[str]) -> None:
    """Run `madao predict`."""
    call(predict, "predict", arguments, plain="paths", noun="path", first="run")


def predict(
    run: str,
    paths: list[str],
    top: int = 3,
    format: Literal["table", "csv", "json"] = "table",
    out: str | None = None,
    weights: Literal["best", "last"] | None = None,
    batch_size: int = 64,
    device: str = "auto",
) -> None:
    """Classify image files with the model of a run.

    Files that cannot be read are named and skipped. If none can be read, the exit code is 1. For segmentation, the
    numbers are shares of the pixels.

    Args:
        run: Run directory.
        paths: Images: files, folders, which are searched for images, or patterns such as 'photos/**/*.jpg'.
        top: Number of classes for each image, the likeliest first.
        format: Form of the result: table (for people), csv (one row per image) or json (a list of objects).
        out: File to write. By default the result is printed.
        weights: Weights to use: best (best on the validation set) or last (last checkpoint). By default those that the
            run evaluated on the test set.
        batch_size: Number of images in each pass.
        device: Device to use: auto (a GPU if there is one), cpu or cuda.
    """
    for name, value in (("top", top), ("batch_size", batch_size)):
        if value < 1:
            raise UserError(f"`{name}` must be at least 1, got {value}")
    model = load_model(run, weights).to(pick_device(device))
    files = expand_paths(paths)
    unreadable: list[Path] = []
    with _opened(out) as write, stop_requests("this file") as request:
        found = predict_files(model, files, top=top, batch_size=batch_size, workers=DataConfig().processes)
        for line in _FORMATS[format](_readable(found, unreadable), files, min(top, len(model.classes))):
            write(line)
            if request.number is not None:
                raise Interrupted(request.number, "stopped")
    if unreadable:
        print(f"madao: skipped {len(unreadable)} of {counted(len(files), 'file')}: unreadable", file=sys.stderr)
    if len(unreadable) == len(files):
        raise SystemExit(1)


def _readable(predictions: Iterable[Prediction], unreadable: list[Path]) -> Iterator[Prediction]:
    """Yield the predictions of readable files. Name the others on stderr, and add them to a list."""
    for prediction in predictions:
        if prediction.error is None:
            yield prediction
            continue
        unreadable.append(prediction.path)
        name, error = printable(prediction.path), printable(prediction.error, 200)
        print(f"madao: cannot read {name} as an image ({error})", file=sys.stderr)


@contextlib.contextmanager
def _opened(out: str | None) -> Iterator[Callable[[str], object]]:
    """Return a function that writes text to a file, or prints it if there is none."""
    if out is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="surrogateescape")  # names of files are bytes
        yield sys.stdout.write
        sys.stdout.flush()
        return
    with replacing(Path(out)) as file:
        yield lambda text: file.write(text.encode(errors="surrogateescape"))


def _table(predictions: Iterable[Prediction], files: list[Path], top: int) -> Iterator[str]:
    width = min(max(len(printable(path)) for path in files), _WIDEST)
    for found in predictions:
        pairs = zip(found.classes, found.shares, strict=True)
        shown = "   ".join(f"{printable(name, 40)} {100 * share:.1f} %" for name, share in pairs)
        yield f"{printable(found.path):<{width}}  {shown}\n"


def _csv(predictions: Iterable[Prediction], files: list[Path], top: int) -> Iterator[str]:
    numbered = [f"_{rank}" if rank > 1 else "" for rank in range(1, top + 1)]
    yield _row(["path", *(f"{name}{number}" for number in numbered for name in ("class", "probability"))])
    for found in predictions:
        pairs = zip(found.classes, found.shares, strict=True)
        yield _row([str(found.path), *(cell for name, share in pairs for cell in (name, f"{share:.6f}"))])


def _row(cells: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _json(predictions: Iterable[Prediction], files: list[Path], top: int) -> Iterator[str]:
    before = "[\n"
    for found in predictions:
        pairs = zip(found.classes, found.shares, strict=True)
        ranked = [{"class": name, "probability": round(share, 6)} for name, share in pairs]
        yield before + json.dumps({"path": str(found.path), "predictions": ranked})
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


_FORMATS = {"table": _table, "csv": _csv, "json": _json}
