"""Tables of cells in a JSON file: run the missing cells, and save each as soon as it is finished."""

import json
import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from measure import environment, write

from madao.config.aliases import current_method

Cell = dict[str, Any]


def current_words(name: str) -> str:
    """Return the name of a cell that begins with a method, such as "madao none 0", with the method's name of today."""
    method, *rest = name.split(" ")
    return " ".join([current_method(method), *rest])


def complete(
    path: Path,
    epochs: int,
    wanted: Mapping[str, tuple[Any, ...]],
    train: Callable[..., Cell],
    summary: Callable[[dict[str, Cell]], Any],
    jobs: int,
    is_incomplete: Callable[[str, Cell], bool] = lambda name, cell: False,
) -> dict[str, Any]:
    """Run the missing cells, and write the table after each.

    Args:
        path: The file of the table.
        epochs: The epochs of every cell. A file with another number is refused.
        wanted: The arguments of `train`, by the name of the cell.
        train: Computes a cell, in a separate process.
        summary: Computes the summary of all cells, which is saved in the file too.
        jobs: The number of processes.
        is_incomplete: Returns whether a cell in the file lacks something, so that it is run again.
    """
    results = environment("torch", "madao") | {"epochs": epochs, "cells": {}}
    if path.exists():
        before = json.loads(path.read_text())
        if before["epochs"] != epochs:
            raise SystemExit(f"{path} holds trainings of {before['epochs']} epochs; give another --output")
        results |= {key: before[key] for key in ("note", "cells") if key in before}
        results["cells"] = {current_words(name): cell for name, cell in results["cells"].items()}
    # Not forked: CUDA does not survive that.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        whole = {name for name, cell in results["cells"].items() if not is_incomplete(name, cell)}
        missing = {name: given for name, given in wanted.items() if name not in whole}
        running = {pool.submit(train, *given): name for name, given in missing.items()}
        for done in as_completed(running):
            if done.exception() is not None:
                pool.shutdown(cancel_futures=True)
            results["cells"][running[done]] = done.result() | {"commit": results["commit"]}
            results["summary"] = summary(results["cells"])
            write(path, results)
    results["summary"] = summary(results["cells"])
    return results
