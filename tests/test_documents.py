"""What the documents tell people to do works."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from madao.cli import main
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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a document in order, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    known = dict(OPERATIONS)
    names: dict[str, object] = {}
    try:
        for language, code in fences(document):
            if language == "python":
                exec(compile(code, document.name, "exec"), names)
    finally:
        for name in OPERATIONS.keys() - known.keys():
            del OPERATIONS[name]


def commands() -> list[str]:
    texts = [text for document in DOCUMENTS for language, text in fences(document) if language == ""]
    lines = [line.split("#")[0].strip() for text in texts for line in text.splitlines()]
    return sorted({line for line in lines if line.startswith("madao ")})


@pytest.mark.parametrize("command", commands())
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import madao

    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (50, 40), "red").save("photos/one.png")
    madao.Policy().spec().save("policy.json")
    assert main(shlex.split(command)[1:]) == 0


def test_the_reader_of_documents_finds_what_is_there() -> None:
    assert "madao preview --policy policy.json --images photos/" in commands()
    assert sum(language == "python" for language, _ in fences(ROOT / "README.md")) >= 2


def test_the_readme_shows_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    first_screen = "\n".join(text.splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda p: p.name
)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert target.startswith("http") or (document.parent / target).exists(), target


def test_the_benchmark_runs(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "speed" / "augment.py"
    arguments = [sys.executable, str(script), "--quick", f"--output={tmp_path / 'out.json'}"]
    result = subprocess.run(arguments, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "224 px" in result.stdout
    assert (tmp_path / "out.json").exists()


def test_the_hypergradient_benchmark_runs(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "speed" / "hypergrad.py"
    result = subprocess.run([sys.executable, str(script), "--quick"], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "forward over reverse" in result.stdout
    assert not [*tmp_path.iterdir()]
