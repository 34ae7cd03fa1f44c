"""`madao recipes`: list the recipes, for the paper's tables and beyond."""

import re
from pathlib import Path

from rich.console import Console
from rich.table import Table

import madao
from madao.cli.parser import call
from madao.errors import UserError
from madao.text import nearest

FOLDER = Path(madao.__file__).parent / "recipes"
METHODS = ("base", "autoaugment", "randaugment", "learned")


def command(arguments: list[str]) -> None:
    """Run `madao recipes`."""
    call(recipes, "recipes", arguments, plain="show", noun="name")


def recipes(show: str | None = None) -> None:
    """List the recipes, with the test errors that the paper reports, or print one.

    Args:
        show: Name of the recipe to print. The word --show may be left out.
    """
    if show is not None:
        print(recipe_path(show).read_text(), end="")
        return
    table = Table("recipe", *METHODS, title="Test error in the paper, %", title_justify="left", box=None)
    own = []
    for path in sorted(FOLDER.glob("*.yaml")):
        if numbers := paper_numbers(path):
            table.add_row(path.stem, *(numbers.get(method, "–") for method in METHODS))
        else:
            own.append(f"  {path.stem}: {path.read_text().splitlines()[0].removeprefix('# ')}")
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print("\n".join(["–: not in the paper. These recipes are not in the paper either:", *own]), markup=False)
    console.print(
        "\ntrain with one: madao train --recipe NAME --data.root FOLDER [--augment.method randaugment]", markup=False
    )
    console.print("print one:      madao recipes NAME", markup=False)


def recipe_names() -> list[str]:
    """Return the names of the recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def recipe_path(name: str) -> Path:
    """Return the file of a recipe.

    Raises:
        UserError: There is no such recipe.
    """
    if name not in recipe_names():
        raise UserError(f"unknown recipe {nearest(name, recipe_names())}")
    return FOLDER / f"{name}.yaml"


def paper_numbers(path: Path) -> dict[str, str]:
    """Return the paper's test errors from a recipe's header, by method."""
    line = re.search(r"^# Test error in the paper, %: (.+)$", path.read_text(), re.MULTILINE)
    if line is None:
        return {}
    return dict(re.findall(r"(\w+) ([\d./]+)", line[1]))
