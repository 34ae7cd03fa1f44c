"""What the documents tell people to do works."""

import re
import shlex
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import madao
from madao import fit
from madao.cli import main
from madao.data import DATASETS, Dataset, DatasetRequest, InMemoryImages
from madao.models import build
from madao.ops import OPERATIONS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def fences(document: Path) -> list[tuple[str, str]]:
    """The (language, text) of every fenced block."""
    found = []
    language, inside = "", None
    for line in document.read_text().splitlines(keepends=True):
        if line.startswith("```"):
            if inside is None:
                language, inside = line[3:].strip(), ""
            else:
                found.append((language, inside))
                inside = None
        elif inside is not None:
            inside += line
    return found


def write_photos() -> None:
    """Write a folder of two classes of images, and one more image, to the present folder."""
    for label, colour in enumerate(("red", "blue")):
        Path("photos", colour).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (50, 40 + label), colour).save(f"photos/{colour}/{number}.png")
    Image.new("RGB", (60, 50), "red").save("photo.jpg")


def write_weights() -> None:
    """Write the weights of a network for other classes: published ones cannot be downloaded here."""
    torch.save(build("mobilenet_v3_small", 5).state_dict(), "weights.pt")


def fit_quickly(data: Any, /, model: Any = None, **settings: Any) -> madao.FitResult:
    """Call `madao.fit` with the same arguments, but for one epoch on small images."""
    small = {"size": 32, "workers": 0} if data == "photos/" else {}
    quick = {"epochs": 1, "batch_size": 8, "device": "cpu", "tensorboard": False, "quiet": True}
    return fit(data, model, **{**settings, **quick, "data": {**settings.get("data", {}), **small}})


def own_loop() -> dict[str, object]:
    """Return what a reader's own training loop has before madao: README's code adds two lines to it."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 2))
    batches = [(torch.rand(4, 3, 8, 8), torch.arange(4) % 2) for _ in range(32)]
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "normalise": lambda images: (images - 0.5) / 0.25,
        "train_loader": batches,
        "validation_loader": batches[:2],
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a document in order, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(madao, "fit", fit_quickly)
    write_photos()
    write_weights()
    text = document.read_text()
    if 'load_model("runs/photos")' in text and 'out="runs/photos"' not in text:
        photos = ["--data.root", "photos", "--data.size", "32", "--out", "runs/photos"]
        assert main(["train", *photos, *QUICK["train"]]) == 0
    known = dict(OPERATIONS)
    names = own_loop() if document.name == "README.md" else {}
    try:
        for language, code in fences(document):
            if language == "python":
                exec(compile(code, document.name, "exec"), names)
    finally:
        for name in OPERATIONS.keys() - known.keys():
            del OPERATIONS[name]


def commands(document: Path) -> list[str]:
    texts = [text for language, text in fences(document) if language == ""]
    lines = [line.split("#")[0].strip() for text in texts for line in text.splitlines()]
    return [line for line in lines if line.startswith("madao ")]


# The same commands on less: what comes last on a command line counts.
QUICK = {
    "train": ["--epochs=1", "--batch_size=8", "--device=cpu", "--devices=1", "--logger=none", "--data.workers=0"],
    "demo": ["--epochs=1"],
    "compare": ["--epochs=1", "--batch_size=128", "--device=cpu", "--logger=none", "--seeds=1"],
}


def fake_cifar10(source: DatasetRequest) -> Dataset:
    images = InMemoryImages(torch.zeros(40, 3, 32, 32, dtype=torch.uint8), torch.arange(40) % 10)
    return Dataset("cifar10", tuple("0123456789"), images, None, images.subset(torch.arange(10)), flip=True)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if commands(d)], ids=lambda path: path.name)
def test_commands_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a document in order, in one folder, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATASETS, "cifar10", fake_cifar10)  # what cannot be downloaded here
    write_photos()
    with tarfile.open(tmp_path / "shards-train.tar", "w") as shard:
        for number, path in enumerate(sorted((tmp_path / "photos").rglob("*.png"))):
            (tmp_path / "label").write_text(str(number % 2))
            shard.add(path, f"{number}.png")
            shard.add(tmp_path / "label", f"{number}.cls")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards-train.tar").rename(tmp_path / "shards" / "train-000.tar")
    madao.Policy().spec().save("policy.json")
    write_weights()
    if "runs/digits-small-cnn-learned-0" in document.read_text():
        assert main(["train", *QUICK["train"]]) == 0
    for command in commands(document):
        verb, *arguments = shlex.split(command)[1:]
        quick = [] if "--resume" in arguments else QUICK.get(verb, [])
        if verb == "train" and not {"photos/", "shards/"}.isdisjoint(arguments):
            quick = [*quick, "--data.size", "32"]
        if "finetune" in arguments:
            quick = [*quick, "--model.name=mobilenet_v3_small", "--model.pretrained=weights.pt"]
        assert main([verb, *arguments, *quick]) == 0, command


def test_the_reader_of_documents_finds_what_is_there() -> None:
    assert "madao export runs/photos --to torchvision" in commands(ROOT / "README.md")
    assert sum(language == "python" for language, _ in fences(ROOT / "README.md")) >= 2


def test_the_readme_shows_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    first_screen = "\n".join(text.splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 700


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda p: p.name
)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert target.startswith("http") or (document.parent / target).exists(), target
