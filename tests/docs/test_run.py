"""The runner of the docs fails a page that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_of
from tests.docs.run import Page


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path / "page.md", tmp_path)


@pytest.mark.parametrize("language", ["", "bash", "pycon", "python title"])
def test_a_language_that_cannot_be_run_is_refused(page: Page, language: str) -> None:
    with pytest.raises(AssertionError, match="cannot be run"):
        page.run(Block(language, 1, "x = 1"))


@pytest.mark.parametrize("code", ["1 + 1  # → 3", "if True:\n    1 + 1  # → 3", "x = 2  # → 2", "len('…')  # → 12…"])
def test_a_value_that_is_not_what_is_shown_is_refused(page: Page, code: str) -> None:
    with pytest.raises(AssertionError, match="shown"):
        page.run(Block("python", 1, code))


def test_a_value_that_is_what_is_shown_passes(page: Page) -> None:
    page.run(
        Block(
            "python", 1, "1 + 1  # → 2\n'abc'  # → abc\n'abc'  # → a…\nawait __import__('asyncio').sleep(0, 5)  # → 5"
        )
    )


@pytest.mark.parametrize("shown", ["$ echo one\ntwo", "$ echo one", "$ echo one two\none", "$ echo one\none\ntwo"])
def test_output_that_is_not_what_is_shown_is_refused(page: Page, shown: str) -> None:
    with pytest.raises(AssertionError, match="got:"):
        page.run(Block("console", 1, shown))


def test_output_that_is_what_is_shown_passes(page: Page) -> None:
    page.run(Block("console", 1, "$ echo 'one   two'\none two\n$ echo one two\none …\n$ true\n$ seq 3\n1\n…"))


def test_a_command_that_fails_is_refused(page: Page) -> None:
    with pytest.raises(AssertionError, match="exited with 3"):
        page.run(Block("console", 1, "$ exit 3"))


def test_the_error_of_a_block_that_raises_has_its_line(page: Page) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        page.run(Block("python", 7, "1 / 0"))
    assert raised.value.__notes__ == ["in the block at page.md:7"]


def test_all_blocks_of_a_page_are_found_in_order(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("<!-- setup: x = 1 -->\n\n```python\ny\n```\n\n<!-- setup:\nz\n-->\n~~~text\nt\n~~~\n")
    assert blocks_of(path) == [
        Block("setup", 1, "x = 1"),
        Block("python", 4, "y"),
        Block("setup", 8, "z"),
        Block("text", 11, "t"),
    ]
