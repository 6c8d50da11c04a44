"""Storage for recordings: a folder here, a bucket elsewhere. Paths are derived from the call alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ROOT = Path(os.environ.get("STORAGE", "storage"))


def path(org: str, call: str, name: str) -> Path:
    return ROOT / org / call / name


def write(to: Path, data: bytes) -> None:
    """Write the whole file or nothing: a file with its final name is complete, even if a writer died."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=to.parent, suffix=".part", delete=False) as part:
        part.write(data)
        part.flush()
        os.fsync(part.fileno())
    Path(part.name).replace(to)


def remove(*paths: Path) -> None:
    for obsolete in paths:
        obsolete.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Remove the partial files of writers that died."""
    remove(*folder.glob("*.part"))
