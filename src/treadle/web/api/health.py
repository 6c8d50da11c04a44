"""For load balancers: whether the process answers, and whether it can use its database."""

from __future__ import annotations

import logging

import msgspec

from treadle.errors import SchemaTooOld, TreadleError
from treadle.web.http import Request, Response
from treadle.web.problem import HTTPProblem
from treadle.web.route import route
from treadle.web.site import Site

log = logging.getLogger("treadle.web")


class Health(msgspec.Struct):
    """All is well."""

    ok: bool = True


class Ready(msgspec.Struct, kw_only=True):
    """The database answers, and has the schema that this treadle needs."""

    ok: bool = True
    schema: int


@route("GET", "/healthz", "The process answers", scope=None, responses={200: Health})
def healthz(site: Site, request: Request) -> Response:
    return Response(data=Health())


@route(
    "GET", "/readyz", "The database answers, and its schema fits", scope=None, responses={200: Ready}, problems=(503,)
)
def readyz(site: Site, request: Request) -> Response:
    """At most one query a second, because it is open to all."""
    return Response(data=Ready(schema=site.cached("schema", 1.0, lambda: _schema(site))))


def _schema(site: Site) -> int:
    """Its number. What is wrong goes to the log: anybody may request here, and need not know where our database is."""
    store = site.app.store
    try:
        found, needed = store.schema(), store.newest_schema()
        if found is None or found < needed:
            raise SchemaTooOld(store.where, found or 0, needed)
        store.now()
    except TreadleError as error:
        log.warning("not ready: %s", error)
        raise HTTPProblem(503, "the database cannot be used", "see the server's log, or run: treadle doctor") from None
    return found
