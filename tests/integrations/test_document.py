"""What docs/integrations.md tells people to do works. Its blocks are `py`: they run here, where libraries may warn."""

from pathlib import Path

import pytest

from tests.test_documents import ROOT, fences


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*")
def test_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = [code for language, code in fences(ROOT / "docs" / "integrations.md") if language == "py"]
    assert len(blocks) == 3
    for code in blocks:
        exec(compile(code, "integrations.md", "exec"), names)
