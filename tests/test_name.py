"""The project has one name. The old one is in one line of the changelog only."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OLD = re.compile("wind" + r"lass|\bw" + r"l\b", re.IGNORECASE)
ALLOWED = "CHANGELOG.md"


def files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("this is not a git checkout")
    return [name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file()]


def lines_with_the_old_name(name: str) -> list[str]:
    text = (ROOT / name).read_bytes().decode("utf-8", "ignore")
    return [f"{name}: {line}" for line in (name, *text.splitlines()) if OLD.search(line)]


def test_only_the_changelog_has_the_old_name() -> None:
    found = [line for name in files() if not name.endswith(".png") for line in lines_with_the_old_name(name)]
    assert [line for line in found if not line.startswith(f"{ALLOWED}:")] == []
    assert len(found) <= 1
