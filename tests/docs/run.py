"""Runs a page like a reader: its blocks in order, in one folder, with the real library and the real command."""

from __future__ import annotations

import ast
import asyncio
import configparser
import importlib
import inspect
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import tomllib
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tests.docs.blocks import Block
from tests.eventually import eventually
from tests.servers.libsql import ByHand

SECONDS = 30.0
"""Longer than any command of the docs should take."""

_FILE = re.compile(r"^# (\w+\.(?:py|toml))$")
_FILE_IN_FOLDER = re.compile(r"^# (\w+/\w+\.py)$")
_SHOWN = re.compile(r"#\s*→\s*(.+?)\s*$")


class Page:
    """A page that is being run: its folder, and the names that its blocks have defined so far."""

    def __init__(self, page: Path, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self.names: dict[str, Any] = {"__name__": f"page_{page.stem}", "_shown": _shown}
        self.modules: list[str] = []
        self._languages: dict[str, Callable[[Block], None]] = {
            "python": self._python,
            "setup": self._python,
            "console": self._console,
            "sql": self._sql,
            "ini": self._ini,
            "toml": self._toml,
            "text": lambda block: None,
        }

    def run(self, block: Block) -> None:
        run = self._languages.get(block.language)
        known = ", ".join(name for name in self._languages if name != "setup")
        assert run is not None, f"a block of {block.language!r} cannot be run; use one of: {known}"
        try:
            run(block)
        except BaseException as error:
            error.add_note(f"in the block at {self._page.name}:{block.line}")
            raise

    def _python(self, block: Block) -> None:
        """Run it here. A block that starts with `# name.py` is saved under that name and imported."""
        if named := _FILE.match(block.code.partition("\n")[0]):
            (self._folder / named[1]).write_text(f"{block.code}\n", "utf-8")
            module = named[1].removesuffix(".py")
            self.modules.append(module)
            sys.modules.pop(module, None)
            importlib.invalidate_caches()
            if not module.startswith("test_"):
                self.names.update({k: v for k, v in vars(importlib.import_module(module)).items() if k[:2] != "__"})
            return
        if named := _FILE_IN_FOLDER.match(block.code.partition("\n")[0]):  # of a project that a command has made
            with (self._folder / named[1]).open("a", encoding="utf-8") as file:
                file.write(f"\n{block.code}\n")
            return
        source = "\n" * (block.line - 1) + block.code
        tree = _checking_what_is_shown(ast.parse(source), source.splitlines())
        code = compile(tree, str(self._page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the docs show no code that warns
            result = eval(code, self.names)
            if inspect.iscoroutine(result):
                asyncio.run(result)

    def _console(self, block: Block) -> None:
        """Run each `$ ` line in a shell. Its output must be the lines that follow; `…` matches anything."""
        assert block.code.startswith("$ "), "a console block starts with a command: `$ …`"
        for entry in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
            command, _, expected = entry.partition("\n")
            while command.endswith("\\"):
                more, _, expected = expected.partition("\n")
                command = f"{command}\n{more}"
            got = self._shell(command, expected)
            assert _matches(expected.replace("^C", ""), got), f"$ {command}\nshown:\n{expected}\ngot:\n{got}"

    def _shell(self, command: str, expected: str) -> str:
        """A command's output. At a `^C`, SIGINT is sent when the text before it was printed and all jobs have run."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "100"}
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        limit = threading.Timer(SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        try:
            assert process.stdout is not None
            got = ""
            before, interrupted, _ = expected.partition("^C")
            if interrupted:
                while not _matches(f"{before}…", got) and (line := process.stdout.readline()):
                    got += line
                self._until_all_has_run()
                os.killpg(process.pid, signal.SIGINT)
            got += process.stdout.read()
            code = process.wait()
        finally:
            limit.cancel()
            if process.stdout is not None:
                process.stdout.close()
        assert code == 0, f"$ {command}\nexited with {code}, having printed:\n{got}"
        return got

    def _until_all_has_run(self) -> None:
        td = self.names["td"]
        eventually(lambda: all(row["status"] not in ("pending", "processing") for row in td.counts()), SECONDS)

    def _sql(self, block: Block) -> None:
        """Run it against the page's database, without changing it."""
        store = self.names["td"].store
        if store.url.startswith("libsql"):
            with closing(ByHand(store.url)) as by_hand:
                for statement in filter(str.strip, block.code.split(";")):
                    by_hand.execute(statement)
            return
        if not store.single_host:
            with psycopg.connect(store.url) as server:
                server.execute(block.code)
                server.rollback()
            return
        connection = sqlite3.connect(store.where, isolation_level=None)
        try:
            for statement in block.code.split(";"):
                if statement.strip():
                    connection.execute(statement).fetchall()
        finally:
            connection.close()

    def _toml(self, block: Block) -> None:
        """Parse it. A block that starts with `# name.toml` is saved under that name, for the commands after it."""
        assert tomllib.loads(block.code)
        if named := _FILE.match(block.code.partition("\n")[0]):
            (self._folder / named[1]).write_text(f"{block.code}\n", "utf-8")

    def _ini(self, block: Block) -> None:
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.read_string(block.code)
        assert unit.sections()


def _checking_what_is_shown(tree: ast.Module, lines: list[str]) -> ast.Module:
    """Check `expression  # → text`: the text after the arrow is the value of the expression."""
    shown = {number: found[1] for number, line in enumerate(lines, 1) if (found := _SHOWN.search(line))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and node.end_lineno in shown:
            text = ast.Constant(shown.pop(node.end_lineno))
            call = ast.Call(ast.Name("_shown", ast.Load()), [node.value, text], [])
            node.value = ast.copy_location(call, node.value)
    assert not shown, f"only an expression can be shown with →: {shown}"
    return ast.fix_missing_locations(tree)


def _shown(value: object, text: str) -> None:
    assert _matches(text, repr(value)) or _matches(text, str(value)), f"shown: {text}, but it is: {value!r}"


def _matches(expected: str, got: str) -> bool:
    """Compare word for word, ignoring whitespace; `…` matches anything, or nothing."""
    parts = (r"\s+".join(map(re.escape, part.split())) for part in expected.split("…"))
    return re.fullmatch(r"\s*" + r"(?s:.*)".join(p and rf"\s*{p}\s*" for p in parts) + r"\s*", got) is not None
