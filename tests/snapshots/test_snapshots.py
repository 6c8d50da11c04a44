"""Compare with recorded snapshots: the OpenAPI document, the tables, and the JSON of commands."""

from __future__ import annotations

import difflib
import json
import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from tests.snapshots import world
from tests.snapshots.cases import CASES, POSTGRES
from tests.snapshots.normal import Normal
from tests.web.conftest import client_of
from treadle import Treadle
from treadle.cli import cli
from treadle.stores import open_store

DATA = Path(__file__).parent / "data"
VARIABLE = "TREADLE_TEST_UPDATE_SNAPSHOTS"
UPDATE = os.environ.get(VARIABLE) == "1"
TABLES = {"sqlite.sql": "sqlite:///treadle.db", "postgres.sql": POSTGRES.removeprefix("--db ")}
FILES = ["openapi.json", *TABLES, *(f"cli/{name}.json" for name in CASES)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, no setting from outside it, and a machine without problems."""
    for name in [name for name in os.environ if name.startswith("TREADLE_")]:
        monkeypatch.delenv(name)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOGNAME", "ann")  # who pauses
    monkeypatch.setenv("TREADLE_URL", "")  # counts as unset, and is restored after the test
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.52.0")  # doctor warns of some versions, and of a full disk
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**12))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("shop", "broken"):  # the next test writes its own
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", FILES)
def test_the_output_equals_its_snapshot(name: str, folder: Path) -> None:
    path, made = DATA / name, _made(name, folder)
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made, "utf-8")
        return
    recorded = path.read_text("utf-8") if path.exists() else ""
    if recorded != made:
        # An assert would make pytest compare the two as well, which is slow.
        pytest.fail(_difference(name, recorded, made), pytrace=False)


def test_every_file_is_still_compared() -> None:
    assert set(FILES) == {path.relative_to(DATA).as_posix() for path in DATA.rglob("*.*")}


def _made(name: str, folder: Path) -> str:
    if name in TABLES:
        return open_store(TABLES[name]).schema_sql()
    document = _openapi(folder) if name == "openapi.json" else _runs(CASES[Path(name).stem], folder)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _openapi(folder: Path) -> Any:
    """The document that an authorized program gets."""
    td = Treadle(f"sqlite:///{folder}/jobs.db")
    served = client_of(td, "read").get("/api/openapi.json")
    td.close()
    assert 200 == served.status_code
    document = served.json()
    return {**document, "info": {**document["info"], "version": "<version>"}}


def _runs(commands: list[str], folder: Path) -> list[dict[str, Any]]:
    """One command after the other, on one database."""
    ids, normal = world.create_world(folder), Normal(folder)
    return [_run(command.format(**ids, newest=world.newest(folder)), normal) for command in commands]


def _run(typed: str, normal: Normal) -> dict[str, Any]:
    result = CliRunner().invoke(cli, [*shlex.split(typed), "--json"], prog_name="treadle")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return {
        "command": normal.ids(typed),
        "exit_code": result.exit_code,
        "stdout": normal.value(json.loads(result.stdout)) if result.stdout else None,
        "stderr": normal.text(result.stderr).splitlines(),
    }


def _difference(name: str, recorded: str, made: str) -> str:
    lines = difflib.unified_diff(
        recorded.splitlines(), made.splitlines(), f"data/{name} as recorded", f"data/{name} as it is now", lineterm=""
    )
    way_out = f"If the change is deliberate, record it: {VARIABLE}=1 .venv/bin/python -m pytest tests/snapshots"
    return "\n".join([f"{name} has changed.", way_out, *lines])
