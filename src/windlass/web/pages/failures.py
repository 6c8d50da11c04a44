"""Failed jobs, put together by what they are and what they raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from windlass.filters import Filter
from windlass.job import FailureGroup
from windlass.redact import HIDDEN
from windlass.web import shown
from windlass.web.ask import Answer, Ask
from windlass.web.pages import seen
from windlass.web.pages.job import can_change
from windlass.web.render import render
from windlass.web.route import Route
from windlass.web.site import Site


class Group(NamedTuple):
    """Failed jobs of one type that raised the same, and the filter that finds them."""

    found: FailureGroup
    filter: str


def failures(site: Site, ask: Ask) -> Answer:
    found = seen.failures(site)
    return render(site, ask, "failures.html", place="failures", groups=groups(found), may_manage=can_change(site, ask))


def groups(found: Sequence[FailureGroup]) -> list[Group]:
    return [Group(safe, _filter(safe)) for safe in map(shown.failure, found)]


def _filter(group: FailureGroup) -> str:
    """What stands before a secret is enough to find them: the address of a page must not have it."""
    error = group.error.partition(HIDDEN)[0]
    return str(Filter(statuses=("failed",), types=(group.type,), errors=((error,),) if error else ()))


ROUTES = (
    Route(method="GET", path="/failures", do=failures, summary="Failed jobs, grouped", page=True, for_tenants=False),
)
