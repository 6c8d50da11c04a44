"""docs/guarantees.md: every promise names a test that exists."""

from __future__ import annotations

import ast
import re

from tests.docs.blocks import ROOT, prose_of

PAGE = ROOT / "docs" / "guarantees.md"
_TEST = re.compile(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")


def test_every_test_that_is_named_exists() -> None:
    named = _TEST.findall(prose_of(PAGE))
    assert [f"{file}: {name}" for name, file in named if name not in _tests_in(file)] == []
    assert len(named) > 20


def test_every_promise_names_a_test() -> None:
    _, *promises = re.split(r"^## ", prose_of(PAGE), flags=re.MULTILINE)
    assert [promise.partition("\n")[0] for promise in promises if not _TEST.search(promise)] == []


def test_no_test_is_named_without_its_link() -> None:
    prose = prose_of(PAGE)
    assert sorted(set(re.findall(r"`(test_\w+)", prose))) == sorted({name for name, _ in _TEST.findall(prose)})


def _tests_in(file: str) -> set[str]:
    path = ROOT / file
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
