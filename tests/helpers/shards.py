"""Shards of a few samples."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path


def write_shard(path: Path, members: Mapping[str, bytes | str]) -> Path:
    """Write a tar file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as shard:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))
    return path
