"""Atomic files: a reader sees the old content or the new one, and nothing in a loaded file can run."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from madao.errors import UserError
from madao.files import load_torch, replacing, save_torch


class Malicious:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_file_has_its_new_content_only_when_it_is_whole(tmp_path: Path, concurrent: bool) -> None:
    path = tmp_path / "new" / "folder" / "result.json"
    for content in (b"first", b"second"):
        with replacing(path, concurrent) as file:
            file.write(content)
            assert not path.exists() or path.read_bytes() == b"first"
        assert path.read_bytes() == content
    assert names(path.parent) == ["result.json"]


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, concurrent: bool) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path, concurrent) as file:
            file.write(b"half of the n")
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["result.json"]


def test_processes_that_write_the_same_file_do_not_share_the_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with replacing(path, concurrent=True) as file:
        file.write(b"ours")
        with replacing(path) as other:
            other.write(b"theirs")
    assert path.read_bytes() == b"ours"


def test_the_next_write_overwrites_what_a_killed_process_left(tmp_path: Path) -> None:
    (tmp_path / "last.pt.part").write_bytes(b"half a check")
    with replacing(tmp_path / "last.pt") as file:
        file.write(b"whole")
    assert names(tmp_path) == ["last.pt"]


def test_bytes_are_synced_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        calls.append(f"sync {os.fstat(handle).st_size}")
        sync(handle)

    def replace(source: Path, target: Path) -> None:
        calls.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with replacing(tmp_path / "five") as file:
        file.write(b"bytes")
    folder = f"sync {tmp_path.stat().st_size}"
    assert calls == ["sync 5", "rename", folder]


def test_tensors_and_plain_values_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    save_torch(path, {"weight": torch.arange(3.0), "classes": ["é"], "best": None})
    found = load_torch(path)
    assert found["weight"].tolist() == [0, 1, 2]
    assert (found["classes"], found["best"]) == (["é"], None)


@pytest.mark.parametrize("form", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_nothing_in_a_file_can_run(tmp_path: Path, form: Callable[[Any, Path], Any]) -> None:
    made, path = tmp_path / "made", tmp_path / "state.pt"
    form({"best": Malicious(made)}, path)
    with pytest.raises(UserError) as caught:
        load_torch(path)
    assert str(path) in str(caught.value)
    assert not made.exists()
    if form is torch.save:
        torch.load(path, weights_only=False)
        assert made.exists()  # it would have run


@pytest.mark.parametrize("content", [None, b"", b"\0" * 5000, b"not a checkpoint\nat all\n" * 50])
def test_files_that_cannot_be_read_are_refused_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "best.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_torch(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ("there is no checkpoint" in str(caught.value)) == (content is None)
