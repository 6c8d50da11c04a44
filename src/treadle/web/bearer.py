"""Who comes with one of our tokens: `Authorization: Bearer td_…`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request as RawRequest

from treadle import tokens
from treadle.stores.base import Store
from treadle.stores.rows import Token
from treadle.web.principal import Principal

if TYPE_CHECKING:
    from treadle.web.site import Site

REMEMBERED = 0.5
"""Seconds for which a token is not looked up again: a revoked one is refused after at most that."""


def secret_of(request: RawRequest) -> str | None:
    """The token in the header, if it is one of ours: an app may have other tokens, which its `auth` knows."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    secret = secret.strip()
    return secret if kind.lower() == "bearer" and secret.startswith(tokens.PREFIX) else None


def holder(site: Site, secret: str) -> Principal | None:
    """Whose it is. None if it was never given out, is revoked, or has expired."""
    hash = tokens.hash_of(secret)
    found: Principal | None = site.cached(("token", hash), REMEMBERED, lambda: _look_up(site.app.store, hash))
    return found


def _look_up(store: Store, hash: str) -> Principal | None:
    token = store.token(hash)
    if token is None or (token.expires_at is not None and token.expires_at <= store.now()):
        return None
    return as_principal(token)


def as_principal(token: Token) -> Principal:
    return Principal(name=token.name, scopes=frozenset(token.scopes), tenant=token.tenant or None)
