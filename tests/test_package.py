"""The public names, and what importing them brings along."""

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import madao
from madao.cli import main

PACKAGE = Path(madao.__file__).parent

PUBLIC = {
    "madao": {
        "AutoAugment",
        "ClassPolicy",
        "Draw",
        "FitResult",
        "ImagePolicy",
        "Policy",
        "PolicyOptimizer",
        "PolicySpec",
        "RandAugment",
        "BaseAugmentation",
        "TrivialAugment",
        "Uniform",
        "fit",
        "hypergrad",
        "load_model",
        "load_policy",
        "ops",
        "preview",
    },
    "madao.hypergrad": {
        "BatchMean",
        "ClassMean",
        "ConjugateGradient",
        "Deflated",
        "DoubleBackward",
        "Estimator",
        "FiniteDifference",
        "ForwardOverReverse",
        "GaussNewton",
        "Hypergradient",
        "Identity",
        "Influence",
        "LeaveOneOut",
        "Momentum",
        "Neumann",
        "NoBaseline",
        "Nystrom",
        "Problem",
        "FunctionalModel",
        "Relaxed",
        "RunningSignal",
        "SameExample",
        "SameLoss",
        "Solution",
        "Solver",
        "SplitLoss",
        "Stats",
        "Status",
        "System",
        "Term",
        "Traced",
        "Unaugmented",
        "Unrolled",
        "agreement",
        "expected_agreement",
        "hypergradient",
        "signal_to_noise",
        "t_values",
    },
    "madao.distributed": {"ProcessGroup", "Shard"},
    "madao.data": {
        "Batches",
        "DATASETS",
        "DataError",
        "Dataset",
        "LazyImages",
        "ImageFiles",
        "Images",
        "GpuDecodedImages",
        "InMemoryImages",
        "Shards",
        "DatasetRequest",
        "check_classes",
        "mean_and_std",
        "stratified_subset",
        "stratified",
    },
    "madao.models": {
        "Encoder",
        "ModelError",
        "SmallCNN",
        "SmallFCN",
        "UnknownModelError",
        "WideResNet",
        "build",
        "build_dense",
        "build_encoder",
        "check_head",
        "known",
        "known_dense",
    },
    "madao.report": {"ReportError", "Run", "find_runs", "read_run", "write_report"},
    "madao.integrations": set(),
    "madao.integrations.lightning": {"PolicyCallback"},
    "madao.integrations.transformers": {"PolicyTrainer"},
    "madao.outer": {"ComputeOptions", "OuterStep", "PolicyOptimizer"},
    "madao.inference": {"ImageModel", "Preprocessing", "load_model", "predict_files", "save_model"},
    "madao.export": {"TARGETS", "Target", "export"},
    "madao.ops": {"OPERATIONS", "PAPER", "Operation", "choose", "dispatch", "find", "register"},
    "madao.tasks": {"Classification", "Draws", "Metric", "MoCo", "KNN", "EvalResult", "Segmentation", "Task"},
    "madao.policy": {
        "AugmentationPolicy",
        "AutoAugment",
        "ClassPolicy",
        "Draw",
        "OperationParams",
        "FrozenPolicy",
        "ImagePolicy",
        "Policy",
        "PolicyFileError",
        "PolicySpec",
        "RandAugment",
        "BaseAugmentation",
        "BaseDraw",
        "TrivialAugment",
        "Uniform",
        "load_policy",
    },
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names(name: str) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) == PUBLIC[name]
    for public in module.__all__:
        value = getattr(module, public)
        assert not callable(value) or value.__doc__, f"{name}.{public} has no docstring"


def loaded(code: str, modules: Sequence[str]) -> list[str]:
    """Which modules are there once some code has run."""
    code = f"import sys; {code}; print(*(m for m in {[*modules]} if m in sys.modules), file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stderr.split()


def test_the_library_does_not_load_what_only_the_command_line_needs() -> None:
    heavy = ["jsonargparse", "sklearn", "PIL", "matplotlib", "torchvision", "rich", "lightning_fabric", "scipy", "yaml"]
    seconds = ["torch._inductor", "torch._functorch.compile_utils"]  # each, and only traced outer steps need them
    assert loaded("from madao import *", ["torch", *heavy, *seconds]) == ["torch"]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["train", "--help"], ["train", "-h", "outer"]])
def test_help_does_not_wait_for_torch(arguments: list[str]) -> None:
    assert loaded(f"from madao.cli import main; main({arguments})", ["torch"]) == []


_LAZY = """
import sys
import madao
assert {*madao.__all__} <= {*dir(madao)}
for name in [*madao.__all__, 'data', 'models', 'outer', 'policy', 'tasks']:
    for loaded in [module for module in sys.modules if module.startswith('madao.')]:
        del sys.modules[loaded]
    for known in {*vars(madao)} & {*madao.__all__, 'data', 'models', 'outer', 'policy', 'tasks'}:
        delattr(madao, known)
    getattr(madao, name)
"""


def test_public_names_come_when_they_are_asked_for() -> None:
    """Each as the first of all: what one brings along is no merit of another."""
    subprocess.run([sys.executable, "-c", _LAZY], check=True)
    assert madao.ops is importlib.import_module("madao.ops")
    with pytest.raises(AttributeError, match="module 'madao' has no attribute 'Polcy'"):
        _ = madao.Polcy  # type: ignore[attr-defined]


def test_ctrl_c_is_no_traceback_even_while_torch_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "madao.errors":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "madao.errors", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert main(["recipes"]) == 130
    assert capsys.readouterr().err == "madao: stopped\n"
