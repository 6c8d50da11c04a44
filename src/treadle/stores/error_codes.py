"""What the error codes of the databases mean: PostgreSQL's SQLSTATEs, SQLite's result codes, and libSQL's.

The codes of all databases are in this one table, so that every part of treadle agrees on them:

              enqueue         claim, beat, chores   settle                       supervisor
  REPEAT      repeated at once, and after ten tries BUSY
  RECONNECT   repeated once, on a new connection, and then UNUSABLE
  BUSY        StoreBusy       waits, repeats        keeps outcomes, repeats      waits, repeats
  UNUSABLE    StoreUnusable   waits, repeats        keeps outcomes, repeats      waits, repeats
  REFUSED     StoreRefused    waits, repeats        fails the job with the value waits, repeats

REFUSED is for codes that the values of one job can cause. All others say nothing about a job, so that none fails for
them: not even a syntax error or a missing table, as the statements are the same for all jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import TypeVar

from treadle.errors import StoreBusy, StoreMoved, StoreRefused, StoreUnusable
from treadle.stores.transaction import BUSY_SECONDS

T = TypeVar("T")

HAS_MOVED = "treadle has moved to "
"""What the triggers of a database say that `treadle copy` has closed, with the new place."""
IS_FILLED = "treadle is filled from "
"""What the triggers of a database say that `treadle copy` has not completed yet, with the source."""


class Action(Enum):
    """What to do about an error of a database."""

    REPEAT = auto()
    """It is rolled back, and nothing is wrong: repeat it at once."""
    RECONNECT = auto()
    """This connection is useless, but a new one may not be: repeat it there."""
    BUSY = auto()
    """It waited too long for others: repeat it later."""
    UNUSABLE = auto()
    """The database cannot be used for now: repeat it later."""
    REFUSED = auto()
    """A bad value, or a bug: repeating it does not help."""


_ACTIONS: Mapping[Action, str] = {
    Action.REPEAT: """
        40  72
        SQLITE_ABORT  SQLITE_SCHEMA  SQLITE_INTERRUPT
        TRANSACTION_TIMEOUT  STREAM_EXPIRED
    """,
    # 0A000: a plan that a change of the schema has made useless. 24, 26, 2D, 34, 3B, 42P05: a pooler that mixes up
    # sessions. 25006: a standby, or a primary that was demoted; a URL with several hosts finds the new one. A file that
    # was opened while it could not be written stays read-only until it is opened again.
    Action.RECONNECT: """
        08  0A  24  25  26  2D  34  3B  40003  42P05  57
        SQLITE_BUSY_SNAPSHOT  SQLITE_READONLY  SQLITE_IOERR  SQLITE_CANTOPEN  SQLITE_CORRUPT  SQLITE_NOTADB
        SQLITE_MISUSE
    """,
    Action.BUSY: """
        55006  55P03  57014
        SQLITE_BUSY  SQLITE_LOCKED  SQLITE_PROTOCOL
        TRANSACTION_BUSY
    """,
    Action.UNUSABLE: """
        02  03  0B  0F  0L  0P  28  2B  3D  3F  42  53  55  58  F0  HV  XX
        SQLITE_ERROR  SQLITE_INTERNAL  SQLITE_PERM  SQLITE_NOMEM  SQLITE_NOTFOUND  SQLITE_FULL  SQLITE_EMPTY
        SQLITE_NOLFS  SQLITE_AUTH  SQLITE_FORMAT  SQLITE_UNKNOWN
        BLOCKED  PROXY_ERROR  SQL_INPUT_ERROR  SQL_PARSE_ERROR  SQL_NO_STATEMENT  SQL_MANY_STATEMENTS  ARGS_INVALID
        ARGS_BOTH_POSITIONAL_AND_NAMED
    """,
    Action.REFUSED: """
        09  0Z  10  20  21  22  23  27  2F  38  39  40002  44  54  P0
        SQLITE_CONSTRAINT  SQLITE_MISMATCH  SQLITE_RANGE  SQLITE_TOOBIG
        RESPONSE_TOO_LARGE
    """,
}
_ACTION_OF = {code: action for action, codes in _ACTIONS.items() for code in codes.split()}

_MAY_BE_COMMITTED = frozenset(("", "08", "40003", "58", "XX", "SQLITE_IOERR", "PROXY_ERROR"))

_NEXT_STEPS = {
    "25006": "wait until it accepts writes again; if the URL has several hosts, add target_session_attrs=read-write",
    "26": "if a pooler is in between, let it prepare statements, or use its session mode",
    "28": "check the user and the password",
    "3D": "create the database, or correct its name in the URL",
    "3F": "create its tables: treadle db upgrade",
    "42": "if its tables are older than this treadle, upgrade them: treadle db upgrade",
    "42501": "its role lacks a right: treadle db roles",
    "42P01": "create its tables: treadle db upgrade",
    "53": "the server lacks memory or has reached a limit: see its log",
    "53100": "make room on the server's disk",
    "53300": "raise max_connections, or use a pooler",
    "58": "see the server's log",
    "XX": "see the server's log",
    "SQLITE_CORRUPT": "the file is damaged: restore a backup, or look first: treadle doctor",
    "SQLITE_FULL": "make room on the disk",
    "SQLITE_NOMEM": "free some memory",
    "BLOCKED": "the server's operator has blocked it: check the limits of your plan",
}


def action(code: str) -> Action:
    """What to do about this code. Codes that no server sends come from someone's own trigger, so that they are about
    the values of a job; names that SQLite and libSQL do not have yet are not."""
    return _found(_ACTION_OF, code) or (Action.REFUSED if _is_sqlstate(code) else Action.UNUSABLE)


def may_be_committed(code: str) -> bool:
    """Whether a COMMIT that was answered with this code may have happened. With any other one it was rolled back."""
    return any(part in _MAY_BE_COMMITTED for part in _prefixes(code))


def error_for(
    code: str, where: str, problem: str, otherwise: str, *, joins_transactions: bool = True
) -> StoreBusy | StoreUnusable | StoreRefused:
    """The error that callers get, with the next step: what the code suggests, or `otherwise`."""
    if HAS_MOVED in problem:
        return StoreMoved(where, problem.partition(HAS_MOVED)[2].rstrip(")"))
    if IS_FILLED in problem:
        return incomplete(where, problem.partition(IS_FILLED)[2].rstrip(")"))
    match action(code):
        case Action.REPEAT | Action.BUSY:
            return StoreBusy(where, BUSY_SECONDS, joins_transactions=joins_transactions)
        case Action.REFUSED:
            return StoreRefused(where, problem)
        case Action.RECONNECT | Action.UNUSABLE:
            return StoreUnusable(where, problem, _found(_NEXT_STEPS, code) or otherwise)


def incomplete(where: str, source: str) -> StoreUnusable:
    """The error about a database that `treadle copy` has not completed yet."""
    return StoreUnusable(where, f"a copy from {source} is not complete", "wait for it, or run it again")


def _found(table: Mapping[str, T], code: str) -> T | None:
    return next((table[part] for part in _prefixes(code) if part in table), None)


def _prefixes(code: str) -> Iterator[str]:
    """The code, and what it is a kind of: 25006, 25; SQLITE_BUSY_SNAPSHOT, SQLITE_BUSY, SQLITE."""
    yield code
    if _is_sqlstate(code):
        yield code[:2]
    while "_" in code:
        code = code.rpartition("_")[0]
        yield code


def _is_sqlstate(code: str) -> bool:
    return len(code) == 5
