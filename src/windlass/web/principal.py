"""Who asks, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from windlass.errors import BadOption

SCOPES = ("read", "enqueue", "tick", "manage")
"""See jobs; store new ones; run what is due; change everything. `manage` includes the others."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who is let in: a name for the audit, scopes, and a tenant if they may see only that one's jobs."""

    name: str = ""
    scopes: frozenset[str] = frozenset()
    tenant: str | None = None

    def may(self, scope: str | None) -> bool:
        return scope is None or scope in self.scopes or "manage" in self.scopes


NOBODY = Principal()


def checked_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """The scopes, or an error that names the one that does not exist."""
    found = frozenset(scopes)
    if wrong := sorted(found - set(SCOPES)):
        raise BadOption("scopes", wrong[0], f"some of {', '.join(SCOPES)}")
    return found
