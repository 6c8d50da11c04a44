"""The HTTP API and the dashboard: `td.asgi(auth=…)`, or `treadle dashboard`. Needs `treadle[web]`."""

from treadle.api_tokens import SCOPES
from treadle.web.app import WebApp as asgi
from treadle.web.auth import Principal, allow_everyone

__all__ = ["SCOPES", "Principal", "allow_everyone", "asgi"]
