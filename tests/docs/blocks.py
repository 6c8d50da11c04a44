"""The code blocks of a page, in order. The blocks run as the reader sees them. HTML comments contain their setup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

_FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(.*?)\s*$")
_SETUP = "<!-- setup:"


class Block(NamedTuple):
    """One block: its language ("setup" if it is hidden), the line on which its code starts, and its code."""

    language: str
    line: int
    code: str


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block and every `<!-- setup: … -->` of a page."""
    found: list[Block] = []
    lines = iter(enumerate(page.read_text("utf-8").splitlines(), 1))
    for number, line in lines:
        if line.startswith(_SETUP):
            rest = line.removeprefix(_SETUP).strip()
            if rest.endswith("-->"):
                found.append(Block("setup", number, rest.removesuffix("-->").strip()))
            else:
                assert not rest, f"{page.name}:{number}: the setup's code starts on the line after `{_SETUP}`"
                found.append(Block("setup", number + 1, _until("-->", lines, page)))
        elif fence := _FENCE.match(line):
            indent, ticks, language = fence.groups()
            assert not indent, (
                f"{page.name}:{number}: an indented block would run with its indent; move it out of the list"
            )
            found.append(Block(language, number + 1, _until(ticks, lines, page)))
    return found


def prose_of(page: Path) -> str:
    """A page without its blocks."""
    kept: list[str] = []
    lines = iter(enumerate(page.read_text("utf-8").splitlines(), 1))
    for _, line in lines:
        if line.startswith(_SETUP) and not line.rstrip().endswith("-->"):
            _until("-->", lines, page)
        elif fence := _FENCE.match(line):
            _until(fence[2], lines, page)
        elif not line.startswith(_SETUP):
            kept.append(line)
    return "\n".join(kept)


def _until(end: str, lines: object, page: Path) -> str:
    code: list[str] = []
    for _, line in lines:  # type: ignore[attr-defined]
        if line.strip() == end:
            return "\n".join(code)
        code.append(line)
    raise AssertionError(f"{page.name}: a block is not closed with {end}")
