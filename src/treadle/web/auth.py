"""Who asks: what `auth=` answers, and what it may answer."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Set
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as RawRequest

from treadle.tokens import SCOPES
from treadle.web.principal import Principal

AuthResult = Principal | str | Set[str] | None
Auth = Callable[[RawRequest], AuthResult | Awaitable[AuthResult]]

EVERYTHING = frozenset(SCOPES)


def allow_everyone(request: RawRequest) -> Principal:
    """For `auth=`: whoever reaches this server may do everything. Spell it out only where that is true."""
    return Principal(name="everyone", scopes=EVERYTHING)


def nobody(request: RawRequest) -> None:
    """Only tokens and sessions let in."""


async def authenticate(auth: Auth, request: RawRequest) -> Principal | None:
    """What the app's own `auth` says of this request; a sync one runs in a thread."""
    if inspect.iscoroutinefunction(auth) or inspect.iscoroutinefunction(getattr(auth, "__call__", None)):  # noqa: B004
        result: Any = await auth(request)  # type: ignore[misc]
    else:
        result = await run_in_threadpool(auth, request)
        if inspect.isawaitable(result):
            result = await result
    return as_principal(result, request)


def as_principal(result: Any, request: RawRequest) -> Principal | None:
    """None, a Principal, "read", "manage" or a set of scopes; anything else is a mistake, and lets nobody in."""
    name = str(getattr(request.scope.get("user"), "display_name", "") or "") if "user" in request.scope else ""
    match result:
        case None:
            return None
        case Principal() if result.scopes <= EVERYTHING:
            return result
        case "read":
            return Principal(name=name or "reader", scopes=frozenset({"read"}))
        case "manage":
            return Principal(name=name or "manager", scopes=EVERYTHING)
        case set() | frozenset() if result <= EVERYTHING:
            return Principal(name=name or "somebody", scopes=frozenset(result))
    ways = f'None, a Principal, "read", "manage" or a set of some of {", ".join(SCOPES)}'
    raise TypeError(f"auth returned {result!r}; return {ways}")
