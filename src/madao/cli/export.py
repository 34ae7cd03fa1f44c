"""`madao export`: write a model as a file, or a policy as a transform of another library."""

from pathlib import Path
from typing import Literal

from madao.cli import say
from madao.cli.parser import call
from madao.errors import UserError
from madao.export import TARGETS
from madao.export import export as text_for
from madao.files import replacing
from madao.inference import load_model
from madao.inference.save import FORMATS, save_model
from madao.policy import FrozenPolicy, PolicySpec, load_policy
from madao.policy.registry import NAMED


def command(arguments: list[str]) -> None:
    """Run `madao export`."""
    call(export, "export", arguments, plain="run")


def export(
    run: str,
    to: str,
    out: str | None = None,
    overwrite: bool = False,
    label: str | None = None,
    weights: Literal["best", "last"] | None = None,
) -> None:
    """Write a model as a file, or a policy as a transform of another library.

    Args:
        run: Run directory whose model or policy is exported. Also a policy.json, uniform or randaugment.
        to: For the model, a file that ends in .safetensors (weights), .pt2 (torch.export) or .onnx. For the policy,
            torchvision, albumentations, kornia, timm, python (a single file that needs only Pillow) or json (the policy
            itself).
        out: File to write. By default policy_torchvision.py, and so on, in the current folder.
        overwrite: Replace the file if it exists.
        label: Class whose policy is exported, or shared for the part that classes or images share. By default the whole
            policy. Only torchvision, python and json take policies for each class; all but kornia take policies for
            each image.
        weights: Weights of the model: best (best on the validation set) or last (last checkpoint). By default those
            that the run evaluated on the test set.
    """
    if to not in TARGETS:
        _export_model(run, to, out, overwrite, label, weights)
        return
    if weights is not None:
        raise UserError(f"`weights` chooses a model, but `to={to}` exports the policy; leave it out")
    target = TARGETS[to]
    spec = of_label(_read(run), label)
    path = Path(out or target.file)
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; give the path of a file, such as {path / target.file}")
    if path.exists() and not overwrite:
        raise UserError(f"{path} already exists; choose another --out, or add --overwrite")
    try:
        text = text_for(spec, to, path.stem)
    except ValueError as error:
        raise UserError(str(error)) from None
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    say(f"wrote {path} (needs {target.needs}); usage:")
    for line in target.usage:
        shown = (
            line.replace("(image)", "(image, label)").replace("(images)", "(images, labels)") if spec.classes else line
        )
        say(f"  {shown.format(module=path.stem, file=path)}")


def _export_model(
    run: str, to: str, out: str | None, overwrite: bool, label: str | None, weights: Literal["best", "last"] | None
) -> None:
    path = Path(to)
    if path.suffix not in FORMATS:
        files = ", ".join(FORMATS)
        raise UserError(
            f"`to`: expected one of {', '.join(TARGETS)} for the policy, or a file that ends in one of {files} for the "
            f"model, got {to!r}"
        )
    for name, given in (("out", out), ("label", label)):
        if given is not None:
            raise UserError(f"`{name}` goes with the policy, but `to={to}` exports the model to {to}; leave it out")
    if path.exists() and not overwrite:
        raise UserError(f"{path} already exists; choose another file, or add --overwrite")
    try:
        written = save_model(load_model(run, weights), path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    print(f"wrote {path} (needs {written.needs}); usage:")
    for line in written.usage:
        print(f"  {line.format(file=path)}")


def of_label(spec: PolicySpec, label: str | None) -> PolicySpec:
    """Return the policy of one class, or the whole policy without a label.

    Raises:
        UserError: The policy has no such class.
    """
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
                f"{run} has no policy.json; runs of the method base have no policy, and new runs have none yet"
            )
    elif run in NAMED and not path.exists():
        policy = load_policy(run)
        if not isinstance(policy, FrozenPolicy):
            raise UserError(
                f"{run} does not fit into a policy file, and the libraries include it already; give a run directory, "
                "a policy.json, uniform or randaugment"
            )
        return policy.spec()
    elif not path.exists():
        raise UserError(f"no run or policy {run}; give a run directory, a policy.json, uniform or randaugment")
    try:
        return PolicySpec.load(path)
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from None
