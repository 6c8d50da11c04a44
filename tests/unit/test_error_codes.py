"""The table of error codes: every code of PostgreSQL, SQLite and libSQL has its action, and no code has two."""

from __future__ import annotations

import re
import sqlite3

import psycopg
import pytest

from treadle.errors import StoreBusy, StoreRefused, StoreUnusable, TreadleError
from treadle.stores.error_codes import _ACTIONS, Action, action, error_for, may_be_committed

SQLSTATES = {code for e in vars(psycopg.errors).values() if isinstance(code := getattr(e, "sqlstate", None), str)}
RESULT_CODES = """
    ERROR INTERNAL PERM ABORT BUSY LOCKED NOMEM READONLY INTERRUPT IOERR CORRUPT NOTFOUND FULL CANTOPEN PROTOCOL EMPTY
    SCHEMA TOOBIG CONSTRAINT MISMATCH MISUSE NOLFS AUTH FORMAT RANGE NOTADB
"""
"""SQLite's primary result codes. Each extended one begins with one of these."""
OF_LIBSQL = """
    SQL_PARSE_ERROR SQL_NO_STATEMENT SQL_MANY_STATEMENTS ARGS_INVALID ARGS_BOTH_POSITIONAL_AND_NAMED
    TRANSACTION_TIMEOUT TRANSACTION_BUSY STREAM_EXPIRED SQL_INPUT_ERROR BLOCKED RESPONSE_TOO_LARGE PROXY_ERROR
    SQLITE_UNKNOWN
"""
"""What a libSQL server sends besides SQLite's codes."""

DECIDED = {
    Action.REPEAT: "40001 40P01 72000 SQLITE_ABORT_ROLLBACK SQLITE_SCHEMA SQLITE_INTERRUPT STREAM_EXPIRED",
    Action.RECONNECT: """
        08000 08001 08003 08004 08006 08P01 0A000 25006 25P02 25P03 25P04 26000 40003 42P05
        57P01 57P02 57P03 57P04 57P05
        SQLITE_BUSY_SNAPSHOT SQLITE_READONLY SQLITE_READONLY_DBMOVED SQLITE_IOERR_FSYNC SQLITE_IOERR_WRITE
        SQLITE_CANTOPEN SQLITE_CORRUPT SQLITE_NOTADB
    """,
    Action.BUSY: "55P03 57014 55006 SQLITE_BUSY SQLITE_BUSY_RECOVERY SQLITE_LOCKED SQLITE_PROTOCOL TRANSACTION_BUSY",
    Action.UNUSABLE: """
        28P01 3D000 3F000 42501 42601 42P01 42703 42883 53100 53200 53300 53400 55000 58000 58030 58P01 XX000 XX001
        SQLITE_ERROR SQLITE_FULL SQLITE_NOMEM SQLITE_PERM SQLITE_AUTH BLOCKED PROXY_ERROR SQL_INPUT_ERROR
    """,
    Action.REFUSED: """
        21000 22001 22003 22021 22P02 22P05 23502 23505 23514 40002 44000 54000 P0001 T0001
        SQLITE_CONSTRAINT_UNIQUE SQLITE_CONSTRAINT_TRIGGER SQLITE_MISMATCH SQLITE_RANGE SQLITE_TOOBIG
    """,
}


@pytest.mark.parametrize("expected", DECIDED, ids=lambda action: action.name)
def test_the_codes_that_databases_send_have_these_actions(expected: Action) -> None:
    assert {code: action(code) for code in DECIDED[expected].split()} == dict.fromkeys(
        DECIDED[expected].split(), expected
    )


def test_every_code_that_exists_is_decided_and_not_left_to_the_default() -> None:
    listed = [code for codes in _ACTIONS.values() for code in codes.split()]
    assert len(listed) == len(set(listed))
    assert len(SQLSTATES) > 200
    assert [code for code in SQLSTATES if code not in listed and code[:2] not in listed] == []
    assert [name for name in RESULT_CODES.split() if f"SQLITE_{name}" not in listed] == []
    assert [name for name in OF_LIBSQL.split() if name not in listed] == []


def test_every_extended_result_code_of_this_sqlite_has_a_primary_one() -> None:
    errors = [name for name in vars(sqlite3) if re.match(rf"SQLITE_({'|'.join(RESULT_CODES.split())})(_|$)", name)]
    assert len(errors) > 80
    actions = {name: action(name) for name in errors}
    assert {name for name, found in actions.items() if "IOERR" in name and found is not Action.RECONNECT} == set()
    assert {name for name, found in actions.items() if "CONSTRAINT" in name and found is not Action.REFUSED} == set()


@pytest.mark.parametrize(("code", "expected"), [("ZZ999", Action.REFUSED), ("SQLITE_NEW", Action.UNUSABLE)])
def test_a_code_that_is_not_in_the_table_comes_from_a_trigger_or_a_newer_sqlite(code: str, expected: Action) -> None:
    assert action(code) is expected


@pytest.mark.parametrize("code", ["", "08006", "08007", "40003", "58030", "XX000", "SQLITE_IOERR_FSYNC", "PROXY_ERROR"])
def test_a_commit_with_this_answer_may_have_happened(code: str) -> None:
    assert may_be_committed(code)


@pytest.mark.parametrize("code", ["23505", "25006", "40001", "40P01", "53100", "57014", "SQLITE_FULL", "SQLITE_BUSY"])
def test_a_commit_with_this_answer_was_rolled_back(code: str) -> None:
    assert not may_be_committed(code)


@pytest.mark.parametrize(
    ("code", "kind", "step"),
    [
        ("25006", StoreUnusable, "target_session_attrs=read-write"),
        ("42P01", StoreUnusable, "treadle db upgrade"),
        ("42501", StoreUnusable, "treadle db roles"),
        ("53100", StoreUnusable, "make room on the server's disk"),
        ("53300", StoreUnusable, "max_connections"),
        ("57P01", StoreUnusable, "look there"),
        ("SQLITE_FULL", StoreUnusable, "make room on the disk"),
        ("SQLITE_CORRUPT_INDEX", StoreUnusable, "restore a backup"),
        ("55P03", StoreBusy, "repeat it later"),
        ("40P01", StoreBusy, "repeat it later"),
        ("22003", StoreRefused, "correct the value"),
    ],
)
def test_the_error_for_a_code_names_the_next_step(code: str, kind: type[TreadleError], step: str) -> None:
    error = error_for(code, "here", "what it said", "look there")
    assert type(error) is kind
    assert str(error).startswith("here")
    assert step in str(error)
