"""Replaces what differs from run to run by placeholders. Everything else stays, with the order of keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import treadle

NUMBERS = {
    "silent_for": "<seconds>",
    "seconds": "<seconds>",
    "wait_p50": "<seconds>",
    "wait_p95": "<seconds>",
    "run_p50": "<seconds>",
    "run_p95": "<seconds>",
    "bytes": "<bytes>",
    "log_bytes": "<bytes>",
}
"""Replaced only if they are numbers: a text in their place is a difference."""
FACTS = {"sqlite_version": "<version>", "file_system": "<file system>"}
ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[\w.-]+-\d+-[0-9a-f]{12}\b")
"""Of a job, or of a worker."""
SPAN = r"\d+(?:\.\d+)? ?(?:ms|s|min|m|h|d)\b(?: \d+[smh]\b)?"
SIZE = r"\d+(?:\.\d)? [kMG]?B\b"
TEXTS: list[tuple[str, str]] = [
    # The format of a time is part of what is recorded: a time in another format stays as it is.
    (r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z", "<time>"),
    (r"\b20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC\b", "<time> UTC"),
    (rf"\b(in|for) {SPAN}", r"\1 <seconds>"),
    (rf"\b{SPAN} ago\b", "<seconds> ago"),
    (rf"{SIZE} free\b", "<bytes> free"),
    (rf"\blog of {SIZE}", "log of <bytes>"),
    (r"\bSQLite 3\.\d+\.\d+", "SQLite <version>"),
    (r"local file system \(.*\)|file system unknown: .*", "local file system (<file system>)"),
    (r"\btd_[\w-]{43}", "td_<secret>"),
    (r"\bcli:[\w.-]+", "cli:<user>"),
    # Python's module path depends on the machine.
    (r"(?m)(^  /.*\.py(\n|\Z))+", "  <path>\n"),
    # In a traceback, only the user's own lines count.
    (r'(  File "/.*\n(    .*\n)+)+', '  File "<path>"\n'),
]


class Normal:
    """One document. An id has the same number everywhere in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._ids: dict[str, str] = {}

    def value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {self.text(name): self.value(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        if key in FACTS:
            return FACTS[key]
        if isinstance(value, str):
            return self._string(value, key)
        counted = isinstance(value, int | float) and not isinstance(value, bool)
        return NUMBERS.get(key, value) if counted else value

    def ids(self, text: str) -> str:
        return ID.sub(self._number, text)

    def text(self, text: str) -> str:
        text = self.ids(text.replace(self._folder, "<dir>"))
        for pattern, placeholder in TEXTS:
            text = re.sub(pattern, placeholder, text)
        return text

    def _string(self, text: str, key: str) -> Any:
        if key == "version" and text == treadle.__version__:
            return "<version>"
        shown = self.text(text)
        # A diff of one long line is unreadable.
        return {"<lines>": shown.split("\n")} if "\n" in shown else shown

    def _number(self, found: re.Match[str]) -> str:
        return self._ids.setdefault(found[0], f"<id:{len(self._ids) + 1}>")
