"""The HTTP API and the dashboard: `wl.asgi(auth=…)`, or `windlass dashboard`. Needs `windlass[web]`."""

from windlass.tokens import SCOPES
from windlass.web.auth import allow_everyone
from windlass.web.mount import asgi
from windlass.web.principal import Principal

__all__ = ["SCOPES", "Principal", "allow_everyone", "asgi"]
