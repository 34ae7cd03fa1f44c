"""Fuzzing of every file that strangers may hand over: policies, run directories, shards and settings.

    python -m tests.hostile.fuzz --minutes 60 --processes 2 --out finds.jsonl
    python -m tests.hostile.fuzz --seed 12345

Each case follows from its seed. A case fails with an exception that is no `MadaoError`, with more than 5 seconds of
computing, a minute of waiting, or 1 GB of memory. Failures are JSON lines; the last line counts cases by target.
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS, WAITING, BYTES = 5.0, 60.0, 2**30


def fuzz_policy(folder: Path, source: random.Random) -> None:
    """A policy file, used if it is read."""
    import torch

    import madao
    from madao.export import export
    from madao.policy import FrozenPolicy
    from madao.policy.describe import sentence

    path = folder / "policy.json"
    _damage(path, _template("policies") / source.choice(("plain.json", "class.json", "image.json")), source)
    spec = madao.PolicySpec.load(path)
    images = torch.rand(4, 3, 9, 7, generator=torch.Generator().manual_seed(0))
    policy = FrozenPolicy(spec.of_class(None) if spec.classes else spec)
    if isinstance(spec.fill, float) or len(spec.fill) == 3:
        if not policy(images).isfinite().all():
            raise FloatingPointError("an augmented image is not finite")
        policy((255 * images).to(torch.uint8))
    assert str(spec)
    assert sentence(spec)
    assert madao.PolicySpec.loads(spec.dumps()) == spec
    compile(export(spec, "python", "fuzzed").encode(), "fuzzed.py", "exec")


def fuzz_report(folder: Path, source: random.Random) -> None:
    """The report of a run directory."""
    run = _damaged_run(folder, source)
    runs = [run] if source.random() < 0.8 else [run, _template("runs") / "learned"]
    _command("report", *map(str, runs), "--out", str(folder / "report.html"), *_figures(source))


def fuzz_resume(folder: Path, source: random.Random) -> None:
    """The files that are read when a run is resumed."""
    from madao.cli.train import read_config
    from madao.training.run.directory import RunDirectory
    from madao.training.run.result import Result

    run = _damaged_run(folder, source)
    config = read_config(["--out", str(run), "--resume"])
    directory = RunDirectory(run)
    directory.check(config)
    directory.rewind(4)
    Result.load(run)


def fuzz_shard(folder: Path, source: random.Random) -> None:
    """A shard and its index."""
    from madao.data.shard_index import index_shard

    shard = folder / "train-0.tar"
    shutil.copy(_template("shards") / shard.name, shard)
    index_shard(shard)
    index = folder / f".{shard.name}.index.npz"
    if source.random() < 0.5:
        stat = shard.stat()
        _damage(shard, shard, source)
        os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    if source.random() < 0.7:
        _damage(index, index, source)
    found = index_shard(shard)
    for row in range(len(found.keys)):
        found.name(row)


def fuzz_settings(folder: Path, source: random.Random) -> None:
    """A file of settings, or of variants."""
    from madao.cli.compare_arguments import read_plan
    from madao.cli.train import read_config

    path = folder / "mine.yaml"
    name = source.choice(("config.yaml", "variants.yaml"))
    _damage(path, _template("settings") / name, source)
    if name == "config.yaml":
        read_config(["--config", str(path)])
    else:
        read_plan(["--variants", str(path), "--methods", "mine"])


TARGETS: dict[str, Callable[[Path, random.Random], None]] = {
    "policy": fuzz_policy,
    "report": fuzz_report,
    "resume": fuzz_resume,
    "shard": fuzz_shard,
    "settings": fuzz_settings,
}


def run_case(seed: int) -> dict[str, Any] | None:
    """Run the case of a seed; return its failure, if any."""
    from madao.errors import MadaoError

    target = [*TARGETS][seed % len(TARGETS)]
    source = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        before = resource.getrusage(resource.RUSAGE_SELF)
        error = None
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                TARGETS[target](Path(name), source)
        except (MadaoError, OSError):
            pass  # the commands show both as one line
        except BaseException:
            error = traceback.format_exc()[-3000:]
        after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    grown = 1024 * (after.ru_maxrss - before.ru_maxrss)
    if error is None and seconds > SECONDS:
        error = f"{seconds:.1f} s of computing"
    if error is None and grown > BYTES:
        error = f"{grown / 2**20:.0f} MiB more memory"
    return None if error is None else {"seed": seed, "target": target, "error": error}


def _damaged_run(folder: Path, source: random.Random) -> Path:
    """A run directory of which one to three files are damaged."""
    run = folder / "run"
    shutil.copytree(_template("runs") / source.choice(("learned", "class", "image", "base")), run)
    names = sorted(path.name for path in run.iterdir() if path.is_file())
    for name in source.sample(names, source.choice((1, 1, 2, 3))):
        match source.randrange(30):
            case 0:
                (run / name).unlink()
            case 1:
                (run / name).unlink()
                (run / name).mkdir()
            case _:
                _damage(run / name, run / name, source)
    return run


def _damage(path: Path, template: Path, source: random.Random) -> None:
    """Write the damaged content of a template to a path."""
    from tests.helpers.mutations import VALUES, damaged, replaced

    content = template.read_bytes()
    if source.random() < 0.4 or path.suffix in (".npz", ".tar"):
        path.write_bytes(damaged(content, source))
    elif path.suffix == ".json":
        path.write_text(json.dumps(replaced(json.loads(content), source)))
    elif path.suffix == ".yaml":
        import yaml

        changed = replaced(yaml.safe_load(content), source)
        with contextlib.suppress(UnicodeEncodeError):
            path.write_bytes(yaml.safe_dump(changed, allow_unicode=source.random() < 0.5).encode())
    else:  # lines of text
        lines = content.decode().splitlines()
        place = source.randrange(len(lines))
        if path.suffix == ".jsonl":
            lines[place] = json.dumps(replaced(json.loads(lines[place]), source))
        else:
            cells = lines[place].split(",")
            cells[source.randrange(len(cells))] = ascii(source.choice(VALUES))
            lines[place] = ",".join(cells)
        path.write_text("\n".join(lines) + "\n")


def _template(kind: str) -> Path:
    """Return the folder of intact files that cases damage. It is made once for each process."""
    root = Path(os.environ["MADAO_FUZZ_TEMPLATES"])
    if not (root / "whole").exists():
        _make_templates(root)
    return root / kind


def _make_templates(root: Path) -> None:
    import torch
    import yaml

    import madao
    from madao.config.train_config import TrainConfig, to_dict
    from madao.policy.conditional.image_conditional import ImagePolicy
    from tests.helpers.run_directories import write_run

    policies: dict[str, madao.Policy] = {
        "plain": madao.Policy(),
        "class": madao.ClassPolicy(("cat", "dog")),
        "image": ImagePolicy(),
    }
    (root / "policies").mkdir(parents=True)
    for name, policy in policies.items():
        with torch.no_grad():
            for weight in policy.parameters():
                weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
        policy.spec().save(root / "policies" / f"{name}.json")
    write_run(root / "runs" / "learned")
    write_run(root / "runs" / "class", classes=("cat", "dog"))
    write_run(root / "runs" / "image", seed=1)
    shutil.copy(root / "policies" / "image.json", root / "runs" / "image" / "policy.json")
    write_run(root / "runs" / "base", method="base", ended=False)
    (root / "shards").mkdir()
    with tarfile.open(root / "shards" / "train-0.tar", "w") as shard:
        for number, ending in itertools.product(range(6), ("jpg", "cls", "json")):
            member = tarfile.TarInfo(f"{number:03}.{ending}")
            content = {"jpg": bytes(200), "cls": b"1", "json": b'{"label": 1}'}[ending]
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    (root / "settings").mkdir()
    settings = to_dict(TrainConfig())
    (root / "settings" / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    (root / "settings" / "variants.yaml").write_text(
        "mine: {outer.every: 60, augment: {limits: {Rotate: 10}}}\nother: {outer.solver: identity, outer.lr: 0.03}\n"
    )
    (root / "whole").touch()


def _figures(source: random.Random) -> list[str]:
    return ["--figures", "true" if source.random() < 0.05 else "false"]


def _command(*arguments: str) -> None:
    from madao.cli import main

    assert main([*arguments]) in (0, 2)


def _work(first: int, stride: int) -> None:
    """Run cases from a seed on, and print a line before and after each, until the parent ends the process."""
    import torch

    torch.set_num_threads(1)
    out, sys.stdout = sys.stdout, io.StringIO()
    _template("policies")
    for seed in range(first, sys.maxsize, stride):
        print(json.dumps({"begins": seed}), file=out, flush=True)
        print(json.dumps({"ends": seed, "failure": run_case(seed)}), file=out, flush=True)


class Worker:
    """A process that runs cases, and the case it is at.

    Args:
        first: The seed of its first case.
        stride: The step from one seed to the next.
    """

    def __init__(self, first: int, stride: int) -> None:
        self.stride, self.templates = stride, tempfile.mkdtemp(prefix="fuzz-templates-")
        self._start(first)

    def _start(self, first: int) -> None:
        environment = {**os.environ, "MADAO_FUZZ_TEMPLATES": self.templates}
        command = [sys.executable, "-m", "tests.hostile.fuzz", "--work", str(first), str(self.stride)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.seed: int | None = None
        self.next = first
        self.since, self.computed, self.memory, self.rest = time.monotonic(), 0.0, 0, b""

    def poll(self) -> list[dict[str, Any]]:
        """Return what has happened: an entry for each case that has ended, with its failure or None."""
        assert self.process.stdout is not None
        found = []
        self.rest += self.process.stdout.read() or b""
        *lines, self.rest = self.rest.split(b"\n")
        for line in lines:
            event = json.loads(line)
            if "begins" in event:
                self.seed, self.since = event["begins"], time.monotonic()
                self.computed, self.memory = self._usage()
            else:
                found.append(event)
                self.seed, self.next = None, event["ends"] + self.stride
        ended = self.process.poll()
        problem = self._problem() if ended is None else f"the process ended with {ended}"
        if problem is not None:
            seed = self.next if self.seed is None else self.seed
            failure = {"seed": seed, "target": [*TARGETS][seed % len(TARGETS)], "error": problem}
            found.append({"ends": seed, "failure": failure})
            self.stop()
            self._start(seed + self.stride)
        return found

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def _problem(self) -> str | None:
        if self.seed is None:
            return None
        computed, memory = self._usage()
        if computed - self.computed > 2 * SECONDS:
            return f"more than {2 * SECONDS:g} s of computing"
        if memory - self.memory > BYTES:
            return f"{(memory - self.memory) / 2**20:.0f} MiB more memory"
        if self._sleeps() and time.monotonic() - self.since > WAITING:
            return f"{WAITING:g} s of waiting"
        return None

    def _sleeps(self) -> bool:
        """Return whether the process waits for something else than a processor."""
        return self._stat()[0] in "SD"

    def _usage(self) -> tuple[float, int]:
        """Return the seconds that the process has computed, and its memory in bytes."""
        fields = self._stat()
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
        return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")

    def _stat(self) -> list[str]:
        """Return the fields of /proc/PID/stat from the state on; zeros if the process has ended."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ["0"] * 30


def main() -> None:
    """Fuzz for some minutes, or run the case of one seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, default=Path("finds.jsonl"))
    parser.add_argument("--seed", type=int, help="run one case")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work is not None:
        _work(*chosen.work)
    if chosen.seed is not None:
        os.environ.setdefault("MADAO_FUZZ_TEMPLATES", tempfile.mkdtemp(prefix="fuzz-templates-"))
        _template("policies")
        print(json.dumps(run_case(chosen.seed), indent=2).replace("\\n", "\n"))
        return
    workers = [Worker(chosen.first + number, chosen.processes) for number in range(chosen.processes)]
    counts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    until = time.monotonic() + 60 * chosen.minutes
    try:
        with chosen.out.open("a") as out:
            while time.monotonic() < until:
                time.sleep(0.2)
                for event in [event for worker in workers for event in worker.poll()]:
                    target = [*TARGETS][event["ends"] % len(TARGETS)]
                    counts[target] += 1
                    if event["failure"] is not None:
                        failures[target] += 1
                        print(json.dumps(event["failure"]), file=out, flush=True)
            summary = {"cases": dict(counts), "failures": dict(failures)}
            print(json.dumps(summary), file=out)
            print(json.dumps(summary))
    finally:
        for worker in workers:
            worker.stop()
            shutil.rmtree(worker.templates, ignore_errors=True)


if __name__ == "__main__":
    main()
