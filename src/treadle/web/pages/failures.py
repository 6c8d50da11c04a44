"""Failed jobs, grouped by type and error."""

from __future__ import annotations

from collections.abc import Sequence

from treadle import views
from treadle.filters import Filter
from treadle.job import FailureGroup
from treadle.views import HIDDEN
from treadle.web.http import Request, Response
from treadle.web.pages import cached
from treadle.web.pages.actions import may_manage
from treadle.web.render import render
from treadle.web.route import route
from treadle.web.site import Site


@route("GET", "/failures", "Failed jobs, grouped", page=True, for_tenants=False)
def failures(site: Site, request: Request) -> Response:
    groups = with_filters(cached.failures(site))
    manage = may_manage(site, request)
    return render(site, request, "failures.html", place="failures", groups=groups, may_manage=manage)


def with_filters(found: Sequence[FailureGroup]) -> list[tuple[FailureGroup, str, str]]:
    """Each with the filter that finds its jobs, and the one that finds the failed ones: only they can be retried."""
    groups = [views.failure(group) for group in found]
    return [(group, _filter(group, "failed", "retrying"), _filter(group, "failed")) for group in groups]


def _filter(group: FailureGroup, *statuses: str) -> str:
    """The text before a secret is enough to find them: a page's address must not contain the secret."""
    error = group.error.partition(HIDDEN)[0]
    return str(Filter(statuses=statuses, types=(group.type,), errors=((error,),) if error else ()))
