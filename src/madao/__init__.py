"""Learn an image model's data augmentation policy while the model trains."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from madao import hypergrad, ops
    from madao.fitting import FitResult, fit
    from madao.inference import load_model
    from madao.outer import PolicyOptimizer
    from madao.policy import (
        AutoAugment,
        BaseAugmentation,
        ClassPolicy,
        Draw,
        ImagePolicy,
        Policy,
        PolicySpec,
        RandAugment,
        TrivialAugment,
        Uniform,
        load_policy,
    )
    from madao.policy.display.contact_sheet import preview

__version__ = "0.2.0.dev0"

__all__ = [
    "AutoAugment",
    "BaseAugmentation",
    "ClassPolicy",
    "Draw",
    "FitResult",
    "ImagePolicy",
    "Policy",
    "PolicyOptimizer",
    "PolicySpec",
    "RandAugment",
    "TrivialAugment",
    "Uniform",
    "fit",
    "hypergrad",
    "load_model",
    "load_policy",
    "ops",
    "preview",
]

_MODULES = ("data", "hypergrad", "models", "ops", "outer", "policy", "tasks")
_ELSEWHERE = {
    "FitResult": "madao.fitting",
    "PolicyOptimizer": "madao.outer",
    "fit": "madao.fitting",
    "load_model": "madao.inference",
    "preview": "madao.policy.display.contact_sheet",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on first use, so that `madao --help` does not wait for torch."""
        if name in _MODULES:
            return importlib.import_module(f"madao.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'madao' has no attribute {name!r}")
        found = getattr(importlib.import_module(_ELSEWHERE.get(name, "madao.policy")), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
