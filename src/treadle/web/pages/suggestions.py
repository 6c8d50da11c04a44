"""What to offer when nothing matches: the nearest filter that finds something."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from treadle import filters
from treadle.filters import Filter
from treadle.job import Count
from treadle.web.api.job_list import bound
from treadle.web.http import Request

if TYPE_CHECKING:
    from treadle.web.site import Site

HINTS = 3
TRIED = 5
"""Terms that are tried to be left out: each is a count."""


class Hint(NamedTuple):
    text: str
    href: str


class Empty(NamedTuple):
    text: str
    hints: list[Hint]


def loosen(site: Site, request: Request, wanted: Filter, counts: dict[str, Count]) -> Empty:
    """Other statuses of the same filter first, then the filter without one of its terms."""
    if not wanted.terms():
        return Empty("There are no jobs yet.", [])
    statuses = ", ".join(wanted.statuses)
    hints = _other_statuses(request, wanted, counts) if wanted.statuses else []
    hints = hints or _without_a_term(site, request, wanted)
    hints = hints or [Hint("All jobs", request.url("/jobs"))]
    return Empty(f"No {statuses} jobs match." if statuses else "No jobs match.", hints[:HINTS])


def _other_statuses(request: Request, wanted: Filter, counts: dict[str, Count]) -> list[Hint]:
    found = [(name, count) for name, count in counts.items() if count.value and name != "all"]
    found.sort(key=lambda pair: -pair[1].value)
    return [
        Hint(f"{count} {name}", request.url("/jobs", q=str(wanted.replace(statuses=(name,)))))
        for name, count in found
        if name not in wanted.statuses
    ]


def _without_a_term(site: Site, request: Request, wanted: Filter) -> list[Hint]:
    terms = [f"{key}:{value}" for key, value in wanted.terms()]
    found: list[tuple[int, Hint]] = []
    for n, left_out in enumerate(terms[:TRIED]):
        text = " ".join(terms[:n] + terms[n + 1 :])
        count = site.app.count(bound(request, filters.parse(text)))
        if count.value:
            found.append((count.value, Hint(f"{count} without {left_out}", request.url("/jobs", q=text))))
    return [hint for _, hint in sorted(found, key=lambda pair: pair[0])]
