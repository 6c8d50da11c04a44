"""Lineage: which jobs a job comes from, and which come from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

import msgspec

MOST_RELATED = 1_000
"""Jobs of a lineage that are looked at, unless you ask for more."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a lineage."""

    id: str
    type: str
    queue: str
    tenant: str
    subject: str
    state: str
    """Finer than a status: a pending job is queued, scheduled or retrying."""
    created_at: datetime


EdgeKind = Literal["parent", "origin"]


class Edge(msgspec.Struct, frozen=True):
    """`target` comes from `source`: it was enqueued after it ("parent"), or by its handler ("origin")."""

    source: str
    target: str
    kind: EdgeKind


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """A job, and the jobs that are related to it in any number of steps."""

    id: str
    nodes: list[Node]
    """The job itself is the first, then those that are nearest to it."""
    edges: list[Edge]
    cut: bool
    """Whether there are more than these."""

    @property
    def targets(self) -> dict[str, list[str]]:
        """The jobs that come from each one, in the order of their ids."""
        return neighbors((node.id for node in self.nodes), ((edge.source, edge.target) for edge in self.edges))


def neighbors(ids: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """What each leads to, once."""
    found: dict[str, set[str]] = {id: set() for id in ids}
    for source, target in pairs:
        if source != target:
            found[source].add(target)
    return {id: sorted(some) for id, some in found.items()}


def layers(targets: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """How many steps each is from the first one, on the longest way. What leads in a circle is last."""
    waiting = dict.fromkeys(targets, 0)
    for some in targets.values():
        for target in some:
            waiting[target] += 1
    found = {id: 0 for id, before in waiting.items() if not before}
    free = list(found)
    for id in free:
        for target in targets[id]:
            found[target] = max(found.get(target, 0), found[id] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                free.append(target)
    last = max((found[id] for id in free), default=0)
    return {id: last + 1 if waiting[id] else found[id] for id in targets}
