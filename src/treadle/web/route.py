"""What a route is, as data: Starlette's routes, the OpenAPI document and the tests are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from starlette.responses import Response as RawResponse

    from treadle.web.http import Request, Response
    from treadle.web.site import Site

Endpoint = Callable[["Site", "Request"], "Response"]
Stream = Callable[["Site", "Request"], Awaitable["RawResponse"]]


class Parameter(msgspec.Struct, frozen=True):
    """One query parameter or header: its type is what it is converted to, and what the document says of it."""

    name: str
    type: Any
    help: str
    default: Any = None
    where: str = "query"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: str
    path: str
    do: Endpoint | Stream
    summary: str
    scope: str | None = "read"
    """What the caller needs; None: nothing, the route is open."""
    for_tenants: bool = True
    """Whether those bound to a tenant may request; then `do` sees to it that they get that tenant's only."""
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    """What a JSON body is decoded to: a msgspec Struct."""
    needs_body: bool = True
    answers: Mapping[int, Any] = {}
    """What it may answer when all is well, by status: a type, several, or the media type of a text."""
    problems: tuple[int, ...] = ()
    """The statuses of problems that it may answer with, beside those that every route can have."""
    page: bool = False
    """Answers with HTML; takes forms; ignores query parameters that it does not know."""
    stream: bool = False
    """`do` is a coroutine function that returns a RawResponse."""

    slow: bool = False
    """May take long: such have threads of their own, so that they keep nobody else waiting."""

    @property
    def changes(self) -> bool:
        """Whether it is left out of a read-only site."""
        return self.method not in ("GET", "HEAD")
