"""What every store can do for the HTTP API: a part of the contract in base.py."""

# pyright: reportReturnType=false
# A method of a Protocol is its docstring here. (pyright would want a `...` after each.)

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from treadle.job import Job, NewJob
from treadle.stores.rows import AuditRow, Operation, Token


class WebRecords(Protocol):
    """The records of the HTTP API: tokens, audit, operations, requests."""

    def audit(self, row: AuditRow) -> None:
        """Record a change."""

    def audits(self, limit: int, before: str | None = None) -> list[AuditRow]:
        """What was changed, newest first. Raises BadCursor if `before` is not an id."""

    def add_token(self, token: Token) -> bool:
        """False if its name is taken."""

    def token(self, hash: str) -> Token | None:
        """The token with this hash."""

    def tokens(self) -> list[Token]:
        """All of them, by name."""

    def drop_token(self, name: str) -> bool:
        """False if there is none."""

    def start_operation(self, operation: Operation) -> None:
        """An operation begins."""

    def resume_operation(self, operation: Operation) -> bool:
        """Continue one that has stopped. False if it has moved since, or another process was first."""

    def fail_operation(self, id: str, error: str) -> None:
        """It ends here, for a reason."""

    def operation(self, id: str) -> Operation | None:
        """How far it is."""

    def operations(self, limit: int) -> list[Operation]:
        """The newest ones."""

    def insert_once(self, tenant: str, key: str, hash: str, jobs: Sequence[NewJob]) -> tuple[list[Job], bool]:
        """`insert`, unless a request with this key was answered before: then what it stored, and False. Raises
        RequestDiffers if that request had another hash."""
