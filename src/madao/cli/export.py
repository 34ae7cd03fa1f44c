"""`madao export`: a learned policy as a transform of another library."""

from pathlib import Path
from typing import Literal

from madao.cli.parser import call
from madao.errors import UserError
from madao.export import TARGETS
from madao.export import export as text_for
from madao.files import replacing
from madao.policy import FrozenPolicy, PolicySpec, load_policy
from madao.policy.registry import NAMED


def command(arguments: list[str]) -> None:
    """Export as the command line says."""
    call(export, "export", arguments, plain="run")


def export(
    run: str,
    to: Literal["torchvision", "albumentations", "kornia", "timm", "python", "json"],
    out: str | None = None,
    overwrite: bool = False,
    label: str | None = None,
) -> None:
    """Write a policy as a transform of another library.

    Args:
        run: A run directory, a policy.json, or uniform or randaugment.
        to: The library. python is one file that needs Pillow alone, json the policy itself.
        out: The file to write. By default policy_torchvision.py and so on, here.
        overwrite: Replace the file if it is there.
        label: Of a policy with classes, the one whose part is written, by its name; shared for what classes or images
            share. By default the whole policy: with classes for torchvision, python and json, whose transforms take
            labels; looking at images for all but kornia.
    """
    target = TARGETS[to]
    spec = of_label(_read(run), label)
    path = Path(out or target.file)
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; give the path of a file, {path / target.file} for one")
    if path.exists() and not overwrite:
        raise UserError(f"{path} is there already; give --out another name, or --overwrite")
    try:
        text = text_for(spec, to, path.stem)
    except ValueError as error:
        raise UserError(str(error)) from None
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    print(f"wrote {path} (needs {target.needs}); use it so:")
    for line in target.usage:
        shown = (
            line.replace("(image)", "(image, label)").replace("(images)", "(images, labels)") if spec.classes else line
        )
        print(f"  {shown.format(module=path.stem, file=path)}")


def of_label(spec: PolicySpec, label: str | None) -> PolicySpec:
    """The part of a class, as a policy without classes; all of it where none is named."""
    if label is None:
        return spec
    try:
        several = spec.classes or spec.network is not None
        return spec.of_class(None if label == "shared" and several and label not in spec.classes else label)
    except ValueError as error:
        raise UserError(f"--label: {error}") from None


def _read(run: str) -> PolicySpec:
    path = Path(run)
    if path.is_dir():
        path = path / "policy.json"
        if not path.is_file():
            raise UserError(
                f"{run} has no policy.json; a run of method standard has no policy, and one just begun has none yet"
            )
    elif run in NAMED and not path.exists():
        policy = load_policy(run)
        if not isinstance(policy, FrozenPolicy):
            raise UserError(
                f"{run} has another law than a policy file holds, and the libraries have it themselves; give a run, a "
                "policy.json, uniform or randaugment"
            )
        return policy.spec()
    elif not path.exists():
        raise UserError(f"there is no run or policy {run}; give a run directory, a policy.json, uniform or randaugment")
    try:
        return PolicySpec.load(path)
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from None
