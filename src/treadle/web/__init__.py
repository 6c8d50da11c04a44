"""The HTTP API and the dashboard: `td.asgi()`, or `treadle dashboard`. Needs `treadle[web]`."""

from treadle.api_tokens import SCOPES
from treadle.web.app import WebApp as asgi
from treadle.web.auth import Principal

__all__ = ["SCOPES", "Principal", "asgi"]
