"""The HTTP API and the dashboard: `td.asgi(auth=…)`, or `treadle dashboard`. Needs `treadle[web]`."""

from treadle.tokens import SCOPES
from treadle.web.auth import allow_everyone
from treadle.web.mount import asgi
from treadle.web.principal import Principal

__all__ = ["SCOPES", "Principal", "allow_everyone", "asgi"]
