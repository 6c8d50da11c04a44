"""Who the caller is, and what they may do: by one of our bearer tokens, or by the mount's own `auth=`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Set
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as RawRequest

from treadle import tokens
from treadle.stores.base import Store
from treadle.tokens import SCOPES

if TYPE_CHECKING:
    from treadle.web.site import Site

EVERYTHING = frozenset(SCOPES)
TOKEN_SECONDS = 0.5
"""A token is not looked up again for this long: a revoked one is refused after at most that."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A caller who is let in: a name for the audit, scopes, and a tenant if they may see only that tenant's jobs."""

    name: str = ""
    scopes: frozenset[str] = frozenset()
    tenant: str | None = None

    def may(self, scope: str | None) -> bool:
        """Whether they have this scope. `manage` includes the others."""
        return scope is None or scope in self.scopes or "manage" in self.scopes


NOBODY = Principal()
AuthResult = Principal | str | Set[str] | None
Auth = Callable[[RawRequest], AuthResult | Awaitable[AuthResult]]


def allow_everyone(request: RawRequest) -> Principal:
    """For `auth=`: whoever reaches this server may do everything. Use it only where you want that."""
    return Principal(name="everyone", scopes=EVERYTHING)


def nobody(request: RawRequest) -> None:
    """For `auth=`: only tokens and sessions let in."""


async def authenticate(auth: Auth, request: RawRequest) -> Principal | None:
    """What the mount's own `auth` says about this request. A sync one runs in a thread."""
    if inspect.iscoroutinefunction(auth) or inspect.iscoroutinefunction(getattr(auth, "__call__", None)):  # noqa: B004
        result: Any = await auth(request)  # type: ignore[misc]
    else:
        result = await run_in_threadpool(auth, request)
        if inspect.isawaitable(result):
            result = await result
    return as_principal(result, request)


def as_principal(result: Any, request: RawRequest) -> Principal | None:
    """None, a Principal, "read", "manage" or a set of scopes. Anything else is a mistake and lets nobody in."""
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


def bearer_token(request: RawRequest) -> str | None:
    """The token in the header, if it is one of ours. An app may have tokens of its own, which its `auth` knows."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    secret = secret.strip()
    return secret if kind.lower() == "bearer" and secret.startswith(tokens.PREFIX) else None


def token_owner(site: Site, secret: str) -> Principal | None:
    """The caller that a token stands for. None if the token is unknown, revoked or expired."""
    hash = tokens.hash_of(secret)
    found: Principal | None = site.cached(("token", hash), TOKEN_SECONDS, lambda: _look_up(site.app.store, hash))
    return found


def _look_up(store: Store, hash: str) -> Principal | None:
    token = store.token(hash)
    if token is None or (token.expires_at is not None and token.expires_at <= store.now()):
        return None
    return Principal(name=token.name, scopes=frozenset(token.scopes), tenant=token.tenant or None)
