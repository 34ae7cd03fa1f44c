"""Show which code uses the memory of a training: in graphs, and at the peak of a step.

    python benchmarks/speed/memory.py [--rows "base, compiled|deflated, compiled"] [--output FILE]

Rows are those of `overhead.py`. torch's history of allocations watches every call before a recording, and every
recording. This is slow, so times mean nothing here. For each, the script reports memory held before and after, by
pool; the peaks of held and used memory; and the memory used at the peak, by the line of code that allocated it. Each
row has its own process.
"""

import argparse
import collections
import json
import linecache
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from measure import environment, write
from overhead import ROWS, measure, random_splits

from madao.outer.cuda_graph import CudaGraphRunner

_MIB = 2**20
_MOST = 12  # lines of code to report


def pools() -> dict[str, int]:
    """Return the MiB that torch holds of the GPU, by pool; 0.0 is the ordinary one."""
    found: collections.Counter[str] = collections.Counter()
    for segment in torch.cuda.memory_snapshot():
        found[".".join(map(str, segment["segment_pool_id"]))] += segment["total_size"] // _MIB
    return dict(found)


def largest(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return the MiB in use at the peak of a call, by the line that allocated them."""
    alive: dict[int, dict[str, Any]] = {}
    total = most = 0
    there: list[dict[str, Any]] = []
    for event in events:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
            total += event["size"]
        elif event["action"] == "free_completed" and event["addr"] in alive:
            total -= alive.pop(event["addr"])["size"]
        if total > most:
            most, there = total, [*alive.values()]
    lines: collections.Counter[str] = collections.Counter()
    for event in there:
        lines[_line(event)] += event["size"]
    return {line: round(size / _MIB, 1) for line, size in lines.most_common(_MOST)} | {"all": round(most / _MIB, 1)}


def _line(event: dict[str, Any]) -> str:
    """Return the line that allocated a block, without names of generated files."""
    frames = event.get("frames") or [{"filename": "", "line": 0, "name": "of another thread"}]
    code = linecache.getline(frames[0]["filename"], frames[0]["line"]).strip()
    known = next((frame for frame in frames if "madao" in frame["filename"]), frames[0])
    return f"{Path(known['filename']).name} {known['name']}: {code[:60]}"


def watched(kind: str, function: Callable[..., Any], told: list[dict[str, Any]]) -> Callable[..., Any]:
    """Wrap a method of `CudaGraphRunner` so that it reports the memory it takes."""

    def run(recorder: CudaGraphRunner[Any], key: Any, given: Any) -> Any:
        before = pools()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python")
        try:
            return function(recorder, key, given)
        finally:
            events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
            torch.cuda.memory._record_memory_history(enabled=None)
            told.append(
                {
                    "what": f"{recorder.name}, {kind}",
                    "held_before": before,
                    "held_after": pools(),
                    "most_held": torch.cuda.max_memory_reserved() // _MIB,
                    "most_in_use": torch.cuda.max_memory_allocated() // _MIB,
                    "in_use_then": largest(events),
                }
            )

    return run


def row(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train two epochs of a row under observation."""
    told: list[dict[str, Any]] = []
    for kind, method in (("before its recording", "_aside"), ("recorded", "_record")):
        setattr(CudaGraphRunner, method, watched(kind, getattr(CudaGraphRunner, method), told))
    measure(ROWS[name], random_splits(arguments.images, arguments.side), arguments, lambda: None)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="base, compiled|deflated, compiled", help="names of rows, separated by |")
    parser.add_argument("--model", default="wrn-28-2")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--curvature", type=int, default=8)
    parser.add_argument("--images", type=int, default=45_000)
    parser.add_argument("--output", metavar="FILE", type=Path)
    parser.set_defaults(task="classification", queue=65_536, precision="bf16", device="auto", epochs=2, warm=1)
    arguments = parser.parse_args()
    results: dict[str, Any] = environment("torch", "triton", "madao") | {"rows": {}}
    names = [name for name in ROWS if any(part in name for part in arguments.rows.split("|"))]
    with ProcessPoolExecutor(len(names), multiprocessing.get_context("spawn")) as pool:
        running = {name: pool.submit(row, name, arguments) for name in names}
        for name, future in running.items():
            results["rows"][name] = future.result()
            for entry in results["rows"][name]:
                print(name, json.dumps(entry, ensure_ascii=False), flush=True)
            if arguments.output is not None:
                write(arguments.output, results)


if __name__ == "__main__":
    main()
