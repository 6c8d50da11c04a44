"""Verbs whose steps are one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from treadle.stores.shared.liveness import MOST_RETURNED, Returned, settle_some
from treadle.stores.transaction import Connections, Steps

if TYPE_CHECKING:
    from treadle.stores.shared.store import SQLStore

P = ParamSpec("P")
T = TypeVar("T")
Verb = Callable[Concatenate["SQLStore[Any]", P], T]


def reads(pool: str, steps: Steps[P, T]) -> Verb[P, T]:
    """A verb that takes these steps, which only read."""

    def verb(store: SQLStore[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        database: Connections = store.database
        return database.read(pool, steps, *args, **kwargs)

    return verb


def writes(pool: str, steps: Steps[P, T]) -> Verb[P, T]:
    """A verb that takes these steps in one transaction."""

    def verb(store: SQLStore[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        database: Connections = store.database
        return database.write(pool, steps, *args, **kwargs)

    return verb


def moves(pool: str, steps: Steps[P, T]) -> Verb[P, T]:
    """A verb that moves jobs in one transaction, though the rows of one of them were broken by hand."""

    def verb(store: SQLStore[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.move(pool, steps, *args, **kwargs)

    return verb


def returns(pool: str, steps: Steps[P, Returned]) -> Verb[P, int]:
    """A verb that settles leases for a worker, in several transactions if there are many."""

    def verb(store: SQLStore[Any], /, *args: P.args, **kwargs: P.kwargs) -> int:
        number, rest = store.move(pool, steps, *args, **kwargs)
        chunks = (rest[at : at + MOST_RETURNED] for at in range(0, len(rest), MOST_RETURNED))
        return number + sum(store.move(pool, settle_some, some) for some in chunks)

    return verb
