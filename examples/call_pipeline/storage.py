"""Where recordings are kept: a folder here, a bucket elsewhere. The same call's things are always in the same place."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ROOT = Path(os.environ.get("STORAGE", "storage"))


def path(org: str, call: str, name: str) -> Path:
    return ROOT / org / call / name


def write(to: Path, data: bytes) -> None:
    """Whole or not at all: what is there under its name can be counted on, whoever dies meanwhile."""
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
    """What those left behind who died while they wrote."""
    remove(*folder.glob("*.part"))
