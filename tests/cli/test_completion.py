"""`madao completion`: scripts that know each command's options and choices, here asked as bash asks them."""

import subprocess
import time
from pathlib import Path

import pytest

from madao.cli import VERBS, main
from madao.cli.completion import options_of, parser_of
from madao.config.train_config import NOT_OPTIONS
from tests.helpers.command_line import fails

_ASK = """
source "$1"; shift
complete -p madao > /dev/null || exit 3
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_madao
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "madao.bash"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main(["completion", "bash"]) == 0
    return path


def offered(script: Path, *words: str) -> set[str]:
    """What bash offers after these words, of which the last is incomplete."""
    command = ["bash", "-c", _ASK, "ask", str(script), "madao", *words]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stderr == ""
    return {line for line in result.stdout.splitlines() if line}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pre"], {"predict", "preview"}),
        (["train", "--precision", ""], {"auto", "32", "tf32", "bf16"}),
        (["train", "--precision", "=", "b"], {"bf16"}),
        (["train", "--logger", ""], {"tensorboard", "wandb", "mlflow", "none"}),
        (["train", "--data.download", ""], {"true", "false"}),
        (["train", "--recipe", "svhn"], {"svhn-wrn-28-2"}),
        (["train", "--dr"], {"--dry-run"}),
        (["compare", "photos/", "--meth"], {"--methods"}),
        (["recipes", "svhn"], {"svhn-wrn-28-2"}),
        (["help", "pre"], {"predict", "preview"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        # Nothing, and bash goes on with files.
        (["train", "--out", ""], set()),
        (["train", "pho"], set()),
    ],
)
def test_bash_offers_what_fits(script: Path, words: list[str], expected: set[str]) -> None:
    assert offered(script, *words) == expected


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_the_help_is_offered(script: Path, verb: str) -> None:
    assert offered(script, verb, "--") == options_of(parser_of(verb)).keys()
    assert not {option.removeprefix("--") for option in offered(script, verb, "--")} & NOT_OPTIONS


def test_completing_does_not_start_python(script: Path) -> None:
    began = time.monotonic()
    assert offered(script, "") >= VERBS.keys()
    assert time.monotonic() - began < 5  # milliseconds on a machine at rest; importing torch takes longer
    assert "python" not in script.read_text()


def test_other_shells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert "bashcompinit" in capsys.readouterr().out
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "complete -c madao -n '__fish_seen_subcommand_from train' -l precision -x -a 'auto 32 tf32 bf16'" in lines
    assert "expected one of bash, zsh, fish" in fails(["completion", "tcsh"], capsys)
