"""Without what `pip install 'madao[train]'` brings."""

import subprocess
import sys

import pytest


def run(blocked: str, code: str) -> subprocess.CompletedProcess[str]:
    block = f"import sys; sys.modules.update(dict.fromkeys({blocked.split()}))\n"
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("blocked", "arguments"),
    [
        ("jsonargparse", ["report", "x"]),
        ("matplotlib matplotlib.figure matplotlib.backends.backend_agg yaml", ["report", "x"]),
        ("lightning_fabric", ["train"]),
    ],
)
def test_commands_say_what_to_install(blocked: str, arguments: list[str]) -> None:
    result = run(blocked, f"from madao.cli import main; sys.exit(main({arguments}))")
    assert result.returncode == 2, result.stderr
    assert "is not installed; commands need: pip install 'madao[train]'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_policies_are_used_without_them() -> None:
    extras = "jsonargparse lightning_fabric matplotlib rich scipy sklearn tensorboard torchvision yaml"
    code = (
        "import torch, madao\n"
        "policy = madao.Policy()\n"
        "again = madao.PolicySpec.loads(policy.spec().dumps())\n"
        "print(policy(torch.rand(2, 3, 8, 8)).shape, again == policy.spec())"
    )
    result = run(extras, code)
    assert result.stdout.strip() == "torch.Size([2, 3, 8, 8]) True", result.stderr
