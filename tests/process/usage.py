"""How many slots of a limited type were in use, from the handlers' journals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.process.journal import Run
from treadle import Rate

LIMIT = 3


class Spell(NamedTuple):
    """A period of time, in nanoseconds."""

    start: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


def over(run: Run, kills: Mapping[int, int]) -> int:
    """When a run ended. That of a killed process ended when it was killed."""
    return run.ended or kills[run.pid]


def changes(runs: Sequence[Run], kills: Mapping[int, int]) -> list[tuple[int, int]]:
    """The times at which a run starts (+1) or ends (-1)."""
    return sorted([(run.started, 1) for run in runs] + [(over(run, kills), -1) for run in runs])


def levels(runs: Sequence[Run], kills: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """How many runs there were from each time on."""
    live = 0
    for at, by in changes(runs, kills):
        live += by
        yield at, live


def most_at_once(runs: Sequence[Run], kills: Mapping[int, int]) -> int:
    return max(live for _, live in levels(runs, kills))


def used(
    runs: Sequence[Run], kills: Mapping[int, int], spells: Sequence[Spell] | None = None, limit: int = LIMIT
) -> float:
    """The part of the slots' time in which a handler ran: from first to last, or in these spells."""
    whole = Spell(min(run.started for run in runs), max(run.last_seen for run in runs))
    spells = [whole] if spells is None else spells
    busy = sum(
        max(0, min(over(run, kills), spell.end) - max(run.started, spell.start)) for run in runs for spell in spells
    )
    return busy / limit / sum(spell.end - spell.start for spell in spells)


def merged(spells: Iterable[Spell]) -> list[Spell]:
    """The same time, in spells that do not overlap, in order."""
    found: list[Spell] = []
    for spell in sorted(spells):
        if found and spell.start <= found[-1].end:
            found[-1] = Spell(found[-1].start, max(found[-1].end, spell.end))
        else:
            found.append(spell)
    return found


class Aftermath(NamedTuple):
    """What followed a fault."""

    filling: Spell
    """Until all slots were in use again, or the next fault came."""
    steady: Spell
    """From then until the next fault."""


def aftermaths(
    runs: Sequence[Run], kills: Mapping[int, int], troubles: Iterable[Spell], limit: int = LIMIT
) -> list[Aftermath]:
    """One for each fault, and one for the beginning. When the last job has started, nothing is left to fill slots."""
    first, last = min(run.started for run in runs), max(run.started for run in runs)
    ordered = merged([Spell(first, first), *(trouble for trouble in troubles if trouble.end < last)])
    ends = [*(trouble.start for trouble in ordered[1:]), last]
    full = list(full_spells(runs, kills, limit))
    found = []
    for trouble, until in zip(ordered, ends, strict=True):
        again = min((max(spell.start, trouble.end) for spell in full if spell.end > trouble.end), default=until)
        found.append(Aftermath(Spell(trouble.end, min(again, until)), Spell(min(again, until), until)))
    return found


def full_spells(runs: Sequence[Run], kills: Mapping[int, int], limit: int) -> Iterator[Spell]:
    """When all slots were in use."""
    for (at, live), (until, _) in pairwise(levels(runs, kills)):
        if live == limit:
            yield Spell(at, until)


def missed_starts(starts: Sequence[int], troubles: Sequence[int], rate: Rate) -> float:
    """The starts that a rate allowed and that did not happen: tokens that found the bucket full. Not those between a
    fault and the next start. While jobs wait, there are none if each token is used before the bucket is full."""
    tokens, missed = rate.burst - 1.0, 0.0
    for last, at in pairwise(sorted(starts)):
        tokens += rate.count * (at - last) / 1e9 / rate.per
        if not any(last <= trouble <= at for trouble in troubles):
            missed += max(0.0, tokens - rate.burst)
        tokens = min(tokens, rate.burst) - 1
    return missed
