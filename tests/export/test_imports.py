"""Exports are light: they load none of what only training needs, touch no GPU, and are quick to import."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.exported import uneven, write

BLOCKED: tuple[str, ...] = ("lightning_fabric", "jsonargparse", "rich", "sklearn", "scipy")
BLOCKED += ("tensorboard", "yaml", "matplotlib", "plotly")

BLOCKER = """
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is not here")
sys.meta_path.insert(0, Blocker())
sys.path.insert(0, {folder!r})
"""


def run(before: str, code: str, folder: Path, blocked: tuple[str, ...]) -> list[str]:
    """Return the output of `code` without the blocked packages, except those that `before` imports."""
    text = f"import sys, time\n{before}\n" + BLOCKER.format(blocked=blocked, folder=str(folder)) + code
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout.split()


USES = {
    "torchvision": "torch.zeros(3, 8, 8)",
    "timm": "Image.new('RGB', (8, 8))",
    "kornia": "torch.zeros(2, 3, 8, 8)",
    "albumentations": "image=np.zeros((8, 8, 3), np.uint8)",
}


@pytest.mark.parametrize("target", USES)
def test_exported_files_run_without_the_packages_of_training(target: str, tmp_path: Path) -> None:
    path = write(uneven(), target, tmp_path)
    # What the library itself loads is its own affair.
    library = {"albumentations": "albumentations, cv2, pydantic", "kornia": "kornia.augmentation"}.get(target, "torch")
    before = f"""
import numpy as np, torch, torchvision, warnings
from PIL import Image
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import {library}
there = {{name for name in {BLOCKED!r} if name in sys.modules}}
"""
    code = f"""
start = time.thread_time()
from {path.stem} import transform
seconds = time.thread_time() - start
for _ in range(30):
    transform({USES[target]})
print(seconds, torch.cuda.is_initialized(), {{name for name in {BLOCKED!r} if name in sys.modules}} == there)
"""
    seconds, initialized, same = run(before, code, tmp_path, BLOCKED)
    assert float(seconds) < 1
    assert (initialized, same) == ("False", "True")


def test_the_python_file_only_needs_pillow(tmp_path: Path) -> None:
    path = write(uneven(), "python", tmp_path)
    code = f"""
start = time.thread_time()
from {path.stem} import transform
seconds = time.thread_time() - start
from PIL import Image
for _ in range(50):
    transform(Image.new("RGB", (9, 7), "red")), transform(Image.new("L", (9, 7)))
print(seconds, any(name in sys.modules for name in ("torch", "numpy", "madao")))
"""
    seconds, loaded = run("", code, tmp_path, (*BLOCKED, "torch", "numpy", "madao", "torchvision"))
    assert float(seconds) < 1
    assert loaded == "False"
