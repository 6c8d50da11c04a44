"""A question and an answer, as endpoints see them: plain data on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request as RawRequest

from treadle.web.principal import Principal
from treadle.web.route import Route


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request, read and checked: by whom, for what, with what."""

    raw: RawRequest
    route: Route
    caller: Principal
    path: Mapping[str, str] = {}
    query: Mapping[str, Any] = {}
    """The route's parameters by name, converted, with their defaults. Headers too."""
    body: Any = None
    form: Mapping[str, list[str]] = {}
    """The fields of a page's form."""

    def url(self, path: str, /, **query: Any) -> str:
        """The address of a path of ours, wherever we are mounted. Parameters that are None or '' are left out."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        prefix = str(self.raw.scope.get("root_path", "")).rstrip("/")
        return prefix + path + (f"?{urlencode(given, doseq=True)}" if given else "")

    def field(self, name: str, default: str = "") -> str:
        """One field of a form."""
        return self.form.get(name, [default])[-1]


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """What to send back: `data` as JSON, or `text` of the given media type."""

    status: int = 200
    data: Any = None
    text: str | bytes | None = None
    media: str = "application/json"
    headers: Mapping[str, str] = {}


def html(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status=status, text=text, media="text/html; charset=utf-8", headers=headers or {})


def redirect(url: str) -> Response:
    """Go there now, with GET: what a form's POST answers. Give it `request.url(…)`."""
    return Response(status=303, text="", media="text/plain", headers={"Location": url})
