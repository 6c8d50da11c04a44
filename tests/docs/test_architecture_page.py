"""docs/architecture.md follows a real job: every name on it exists, and the steps happen in this order."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, prose_of
from tests.docs.trace import SOURCE, traced
from treadle import Treadle

PAGE = ROOT / "docs" / "architecture.md"
PAGES = [PAGE, ROOT / "docs" / "internals.md"]

_STEP = re.compile(r"`([\w/]+\.py): ([\w.]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"src/treadle/[\w/]+\.\w+", page.read_text("utf-8"))
    named += [f"src/treadle/{path}" for path in re.findall(r"`([\w/]+/|[\w/]+\.py)`", _parts(page))]
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_function_that_is_named_exists(page: Path) -> None:
    steps = _STEP.findall(prose_of(page))
    assert [f"{file}: {name}" for file, name in steps if name not in _functions(SOURCE / file)] == []
    assert steps


def test_the_steps_are_in_the_order_of_the_real_calls(tmp_path: Path) -> None:
    _, _, section = prose_of(PAGE).partition("## One job, followed\n")
    steps = _STEP.findall(section.partition("\n## ")[0])
    assert 10 < len(steps) <= 12
    assert len({file for file, _ in steps}) <= 8

    calls = _calls_of_a_job(f"sqlite:///{tmp_path}/jobs.db")
    remaining = iter(calls)
    out_of_order = [f"{file}: {name}" for file, name in steps if (file, name) not in remaining]
    assert out_of_order == []


def _parts(page: Path) -> str:
    """The section that lists files without the path of the source."""
    return prose_of(page).partition("## The parts\n")[2].partition("Imports point")[0]


def _calls_of_a_job(url: str) -> list[tuple[str, str]]:
    """Every function of treadle, as it is called, while a job is enqueued, run and settled as a failure."""
    td = Treadle(url)

    @td.job
    def fails() -> None:
        raise ValueError("the first attempt fails")

    def work() -> None:
        fails.enqueue()
        assert td.tick().retried == 1

    return [(call.function.file, call.function.name) for call in traced(work)]


def _functions(file: Path) -> set[str]:
    """The functions of a file, methods as Class.method."""
    names: set[str] = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        names |= {f"{prefix}{f.name}" for f in inside if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)}
    return names
