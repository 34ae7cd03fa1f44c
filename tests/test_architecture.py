"""The layout of the package: arrows that point one way, no cycles, small modules and small packages."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import madao

SOURCE = Path(madao.__file__).parent.parent

# Leaves: every part may import these.
LEAVES = {"errors", "files", "text", "labels", "config", "device", "distributed.group"}

# The siblings that each part may import, besides the leaves.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "files": set(),
    "text": set(),
    "labels": set(),
    "config": set(),
    "device": set(),
    "ops": set(),
    "hypergrad": set(),
    "models": set(),
    "data": set(),
    "policy": {"ops"},
    "distributed": {"policy"},
    "tasks": {"policy", "ops"},
    "export": {"policy", "ops"},
    "report": {"policy", "ops"},
    "outer": {"policy", "hypergrad", "distributed"},
    "integrations": {"outer", "policy", "hypergrad", "distributed"},
    "training": {"outer", "tasks", "data", "models", "policy", "hypergrad", "distributed", "ops"},
    "inference": {"training", "data", "ops"},
    "fitting": {"inference", "training", "data", "policy", "report"},
    "experiments": {"training", "report", "outer", "tasks", "data", "models", "policy"},
}

MOST_IMPORTS = 15
MOST_MODULES = 16
MOST_LINES = 400


def modules() -> dict[str, Path]:
    """Every module of madao by its dotted name."""
    names = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("madao/**/*.py")}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


MODULES = modules()


def imports(source: str, known: dict[str, Path]) -> set[str]:
    """The modules of madao that a module imports, also inside functions and for types only."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full, so that this test can read them"
            module = str(node.module)
            found |= {f"{module}.{alias.name}" if f"{module}.{alias.name}" in known else module for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known.keys()


GRAPH = {name: imports(path.read_text(), MODULES) - {name} for name, path in MODULES.items()}


def is_leaf(name: str) -> bool:
    inner = name.removeprefix("madao.")
    return any(inner == leaf or inner.startswith(f"{leaf}.") for leaf in LEAVES)


@pytest.mark.parametrize("name", sorted(GRAPH))
def test_imports_follow_the_arrows(name: str) -> None:
    part, *_ = name.removeprefix("madao.").split(".")
    if name == "madao" or part in ("cli", "__main__"):
        return
    assert part in ARROWS, f"{part} is not in the layout"
    foreign = {
        other
        for other in GRAPH[name]
        if other != "madao" and other.split(".")[1] not in {part, *ARROWS[part]} and not is_leaf(other)
    }
    assert not foreign, f"{name} must not import {sorted(foreign)}"
    if name == "madao.distributed.group":
        assert not GRAPH[name] - {"madao.distributed"}


def cycles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Modules that import each other, directly or not: Tarjan's strongly connected components."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> Iterator[list[str]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                yield from visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            group, stack[at:] = stack[at:], []
            if len(group) > 1:
                yield sorted(group)

    for node in graph:
        if node not in index:
            yield from visit(node)


def test_there_are_no_cycles() -> None:
    assert [*cycles(GRAPH)] == []


def test_no_module_imports_many() -> None:
    assert not {name: len(found) for name, found in GRAPH.items() if len(found) > MOST_IMPORTS}


def test_no_package_has_many_modules_side_by_side() -> None:
    counts = {path.parent: len([*path.parent.glob("*.py")]) - 1 for path in MODULES.values()}
    assert not {str(folder): count for folder, count in counts.items() if count > MOST_MODULES}


def test_no_module_is_long() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert not {name: lines for name, lines in lengths.items() if lines > MOST_LINES}


def test_no_test_file_imports_another() -> None:
    tests = Path(__file__).parent
    crossed = {
        str(path.relative_to(tests))
        for path in tests.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[-1].startswith("test_")
    }
    assert not crossed


def test_the_reader_sees_every_kind_of_import() -> None:
    source = "import madao.ops\nfrom madao import policy\ndef f():\n    from madao.cli.preview import preview\n"
    assert imports(source, MODULES) == {"madao.ops", "madao.policy", "madao.cli.preview"}


def test_the_search_for_cycles_finds_one() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert [*cycles(graph)] == [["b", "c"]]


PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Everything that arrows lead to from `start`."""
    direct = graph.get(start, set())
    return direct.union(*(reached(graph, other) for other in direct))


def test_the_picture_in_the_docs_has_these_arrows() -> None:
    picture: dict[str, set[str]] = {}
    for here, there in re.findall(r"^ +(\w+) --> (\w+)$", PAGE, re.MULTILINE):
        picture.setdefault(here, set()).add(there)
    commands = {
        name.split(".")[1]
        for module in GRAPH
        if module.startswith("madao.cli")
        for name in GRAPH[module]
        if name != "madao"
    }
    allowed = {**ARROWS, "cli": commands - {"cli"} - LEAVES}
    assert not {here: others - allowed[here] for here, others in picture.items() if others - allowed[here]}
    missing = {here: others - reached(picture, here) for here, others in allowed.items()}
    assert not {here: others for here, others in missing.items() if others}


def test_the_page_on_the_architecture_names_places_that_exist() -> None:
    root = Path(__file__).parents[1]
    packages = {path.name for path in (SOURCE / "madao").iterdir() if path.is_dir()}
    named = [name for name in re.findall(r"`([\w/]+(?:\.py)?)`", PAGE) if name.split("/")[0] in {*packages, "tests"}]
    assert len(named) > 60
    assert [name for name in named if not (SOURCE / "madao" / name).exists() and not (root / name).exists()] == []
    assert len(PAGE.split()) <= 1000
