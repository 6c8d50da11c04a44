"""Who asks, and what they may do."""

from __future__ import annotations

import msgspec


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who is let in: a name for the audit, scopes, and a tenant if they may see only that one's jobs."""

    name: str = ""
    scopes: frozenset[str] = frozenset()
    tenant: str | None = None

    def may(self, scope: str | None) -> bool:
        """Whether they have this scope. `manage` includes the others."""
        return scope is None or scope in self.scopes or "manage" in self.scopes


NOBODY = Principal()
