"""Failed jobs, put together by what they are and what they raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle import views
from treadle.filters import Filter
from treadle.job import FailureGroup
from treadle.redact import HIDDEN
from treadle.web.http import Request, Response
from treadle.web.pages import cached
from treadle.web.pages.job import can_change
from treadle.web.render import render
from treadle.web.route import Route
from treadle.web.site import Site


class Group(NamedTuple):
    """Failed jobs of one type that raised the same, and the filter that finds them."""

    found: FailureGroup
    filter: str


def failures(site: Site, request: Request) -> Response:
    found = cached.failures(site)
    return render(
        site, request, "failures.html", place="failures", groups=groups(found), may_manage=can_change(site, request)
    )


def groups(found: Sequence[FailureGroup]) -> list[Group]:
    return [Group(safe, _filter(safe)) for safe in map(views.failure, found)]


def _filter(group: FailureGroup) -> str:
    """What stands before a secret is enough to find them: the address of a page must not have it."""
    error = group.error.partition(HIDDEN)[0]
    return str(Filter(statuses=("failed",), types=(group.type,), errors=((error,),) if error else ()))


ROUTES = (
    Route(method="GET", path="/failures", do=failures, summary="Failed jobs, grouped", page=True, for_tenants=False),
)
