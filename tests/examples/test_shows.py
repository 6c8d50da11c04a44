"""Each example runs with one command, ends by itself in a pipe, and has every test that the table promises."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.eventually import eventually
from tests.examples.harness import ROOT

EXAMPLES = ROOT / "examples"
NAMES = sorted(main.parent.name for main in EXAMPLES.glob("*/__main__.py"))
_SECTION = re.compile(r"^### \w+: `(test_\w+\.py)`$", re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_the_show_ends_by_itself_with_a_table_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    """It has killed a worker on the way, and lost nothing by it."""
    ran = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "kill -9" in ran.stdout
    assert "│ " in ran.stdout
    assert list(tmp_path.iterdir()) == []
    eventually(lambda: not [process for process in psutil.process_iter() if _is_of(process, tmp_path)])


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get("TMPDIR") == str(folder)
    except psutil.Error:
        return False


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    ran = subprocess.run([ROOT / "script" / "example", "nonsense"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "nonsense is none of them" in ran.stderr
    assert ran.stderr.split()[-len(NAMES) :] == NAMES


def test_every_requirement_has_its_test() -> None:
    """Each test in the table exists, each test of an example is in the table, and none is skipped."""
    _, *parts = _SECTION.split((EXAMPLES / "README.md").read_text("utf-8"))
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert len(sections) == len(NAMES)
    for file, text in sections.items():
        path = Path(__file__).parent / file
        promised = set(re.findall(r"`(test_\w+)`", text))
        there = {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}
        assert promised == {name for name in there if name.startswith("test_")}, file
        assert not re.search(r"\b(skip|skipif|xfail)\b", path.read_text("utf-8")), file


@pytest.mark.parametrize("name", NAMES)
def test_every_example_has_a_page_of_its_own(name: str) -> None:
    page = (EXAMPLES / name / "README.md").read_text("utf-8")
    assert f"./script/example {name}" in page
    for named in re.findall(r"^\| `(\w+\.py)` \|", page, re.MULTILINE):
        assert (EXAMPLES / name / named).exists()
    for file, place in re.findall(r"`(\w+\.py): (\w+)`", page):
        code = (EXAMPLES / name / file).read_text("utf-8")
        there = re.search(rf"^ *(async )?(def|class) {place}\b|^{place} = ", code, re.MULTILINE)
        assert there, f"{file} has no {place}"
