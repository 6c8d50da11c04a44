"""The suite runs against a store from another project, as docs/testing.md describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# It has the contract of a store, and hides everything else of the store inside.
STORE = """
from treadle.stores.base import Engine, Managing, Reading, Schema, WebRecords
from treadle.stores import open_store

PARTS = (Engine, Schema, Reading, Managing, WebRecords)
VERBS = {name for part in PARTS for name in (*vars(part), *part.__annotations__)}

class Outside:
    def __init__(self, path, clock):
        self._inside = open_store(f"sqlite:///{path}.db", clock=clock)
        self.url = f"outside:{path}"

    def __getattr__(self, name):
        if name not in VERBS:
            raise AttributeError(name)
        return getattr(self._inside, name)

class Forgetful(Outside):
    def settle(self, ended):
        return self._inside.settle(ended[:1])

open_outside, open_forgetful = Outside, Forgetful
"""


def run(folder: Path, store: str, *tests: str) -> tuple[int, dict[str, int]]:
    """Run the suite. Return its exit code, and how many tests passed, failed and so on."""
    (folder / "outside_store.py").write_text(STORE)
    environment = {**os.environ, "TREADLE_TEST_STORE": f"outside_store:{store}", "PYTHONPATH": f"{folder}:{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    return result.returncode, {kind: int(n) for n, kind in re.findall(r"(\d+) (\w+)", result.stdout.splitlines()[-1])}


@pytest.mark.timeout(180)
def test_a_store_from_another_project_is_tested_against_the_contract(tmp_path: Path) -> None:
    files = ("claim", "dedupe", "rescue", "manage")
    code, counts = run(tmp_path, "open_outside", *(f"tests/conformance/test_{name}.py" for name in files))

    assert (code, counts.get("failed", 0), counts.get("errors", 0)) == (0, 0, 0)
    assert counts["passed"] > 50


@pytest.mark.timeout(180)
def test_the_suite_fails_for_a_store_that_breaks_the_contract(tmp_path: Path) -> None:
    code, counts = run(tmp_path, "open_forgetful", "-x", "tests/conformance/test_settle.py")

    assert (code, counts["failed"] > 0) == (1, True)
