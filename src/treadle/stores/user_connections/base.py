"""What a store does on a connection that is the user's: statements in their transaction, and none of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Protocol

from treadle.errors import BadConnection

Rows = list[tuple[Any, ...]]

SAVE = "SAVEPOINT treadle"
KEEP = "RELEASE treadle"
UNDO = ("ROLLBACK TO SAVEPOINT treadle", "RELEASE SAVEPOINT treadle")
"""In other words than KEEP: these are also sent when all else is refused."""

# The start tells servers apart, also a copy restored from a backup, whose system identifier and oids are the same; and
# unlike pg_control_system() any role may ask for it. Written in full, as a session may have its own time zone.
IDENTITY = """
SELECT current_database() || '@'
    || to_char(pg_postmaster_start_time() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24.MI.SS.US')
"""

NO_TRANSACTION, FAILED_TRANSACTION = "25P01", "25P02"
CLOSED = "it is closed", "pass an open one"
FAILED = "its transaction has failed", "roll it back first"


class Borrowed(Protocol):
    """The user's connection, whatever its driver. Nothing here commits, rolls back their work or closes it."""

    def execute(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """All rows of one statement, [] if it has none.

        Parameters are `%(name)s`, and no other percent sign is in the statement. Each is cast to what Python has at
        hand: text (str), bigint (int), double precision (float), boolean (bool). Columns too: what else there is,
        jsonb and timestamptz for example, comes back differently from each driver, and as users have configured it.
        """
        ...


class Driver(ABC):
    """One kind of connection."""

    begin: ClassVar[str]
    """How users of it open a transaction."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def __repr__(self) -> str:  # it is the user's connection that errors must show
        return repr(self.connection)

    def execute(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        if (trouble := self.trouble()) is not None:
            raise BadConnection(self.connection, *trouble)
        try:
            return self.run(sql, parameters)
        except Exception as error:
            # The server knows best: what a driver remembers is wrong after a COMMIT that was sent as text.
            state = sqlstate(error)
            if state == NO_TRANSACTION:
                raise BadConnection(self.connection, "no transaction is open on it", self.begin) from error
            if state == FAILED_TRANSACTION:
                raise BadConnection(self.connection, *FAILED) from error
            raise

    @abstractmethod
    def trouble(self) -> tuple[str, str] | None:
        """What is wrong with the connection, and the way out; as far as one sees without asking the server."""

    @abstractmethod
    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """All rows of a statement on a connection that is in no trouble."""


@contextmanager
def savepoint(borrowed: Borrowed) -> Generator[None]:
    """If the block raises, nothing of it stays in the user's transaction, which can go on.

    It comes before all else, because it is what fails if the user has no transaction.
    """
    borrowed.execute(SAVE, {})
    try:
        yield
        borrowed.execute(KEEP, {})
    except BaseException:
        with suppress(Exception):  # the connection is lost, and the transaction with it
            for statement in UNDO:
                borrowed.execute(statement, {})
        raise


def identity(borrowed: Borrowed) -> str:
    """The same for all connections to one database, until its server restarts: before two are said to differ,
    both have to be asked anew."""
    [[answer]] = borrowed.execute(IDENTITY, {})
    return str(answer)


def sqlstate(error: BaseException | None) -> str | None:
    """The server's code for an error, however deep SQLAlchemy or Django have wrapped it."""
    if error is None:
        return None
    for name in ("sqlstate", "pgcode"):
        if isinstance(code := getattr(error, name, None), str):
            return code
    return sqlstate(getattr(error, "orig", None) or error.__cause__)
