"""The results: kept as rounds, so that runs can be merged, and shown as tables in Markdown."""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from bench import machine
from bench.measure import Sample, ratio
from bench.peers.catalog import PEERS
from bench.peers.figures import FIGURES, SINGLY, Figure, Row
from bench.peers.measure import Sizes
from bench.peers.peer import TREADLE
from bench.peers.process import About
from bench.peers.rounds import Round

BY_NAME = {peer.name: peer for peer in PEERS}


class Result(msgspec.Struct, frozen=True):
    """One run, or several merged ones."""

    machine: str
    sizes: list[Sizes]
    seconds: float
    """How long it took."""
    rounds: list[Round]
    about: dict[str, About]
    servers: dict[str, str]
    problems: dict[str, str]
    """Who was left out, and why."""

    @classmethod
    def begin(cls, sizes: Sizes) -> Result:
        system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
        where = f"{machine.cores()} cores, {machine.cpu()}; {system}"
        return cls(where, [sizes], 0.0, [], {}, {"SQLite": f"{sqlite3.sqlite_version}: WAL, synchronous=FULL"}, {})


def merged(results: Sequence[Result]) -> Result:
    """All rounds together. What a later one says of a queue or a server holds."""
    whole = msgspec.structs.replace(results[0], seconds=sum(result.seconds for result in results))
    for other in results[1:]:
        whole.sizes.extend(sizes for sizes in other.sizes if sizes not in whole.sizes)
        whole.rounds.extend(other.rounds)
        whole.about.update(other.about)
        whole.servers.update(other.servers)
        whole.problems.update(other.problems)
    return whole


def markdown(result: Result) -> str:
    parts = [_head(result)]
    for figure in FIGURES:
        for name, row in figure.rows.items():
            if table := list(_figure(result, figure, name, row)):
                parts.append("\n".join(table))
    parts.append("\n".join(_queues(result)))
    if result.problems:
        parts.append("\n".join(["### Left out", "", *(f"- {who}: {why}" for who, why in result.problems.items())]))
    return "\n\n".join(parts)


def _head(result: Result) -> str:
    servers = "; ".join(f"{name} {about}" for name, about in result.servers.items())
    lines = [f"{result.machine}. All together took {result.seconds / 60:.0f} minutes.", f"{servers}."]
    for n in result.sizes:
        lines.append(
            f"Drains of {n.drain:,} jobs, fewer for slow queues; {n.bulk:,} jobs in bulk, {n.seconds:g} s singly; "
            f"{n.pickups} pickups a round; idle for {n.idle:g} s a round."
        )
    return "\n".join(f"- {line}" for line in lines)


def _figure(result: Result, figure: Figure, name: str, row: Row) -> Iterator[str]:
    """One table, if anything of it was measured: treadle first."""
    rounds = [found.values[name] for found in result.rounds if found.figure == figure.key]
    names = dict.fromkeys(queue for values in rounds for queue in values)
    if not names:
        return
    better = "more" if row.more_is_better else "less"
    yield f"### {row.what}"
    yield ""
    yield f"| queue | {row.unit or 'number'} ({better} is better) | treadle ÷ it | when a worker is killed |"
    yield "|---|---:|---:|---|"
    for queue in names:
        both = [values for values in rounds if queue in values and TREADLE in values]
        sample = Sample(tuple(values[queue] for values in both))
        quotient = ratio(Sample(tuple(values[TREADLE] for values in both)), sample)
        comparable = queue != TREADLE and all(sample.values)
        cells = [_called(queue, figure), _spread(sample), _spread(quotient) if comparable else "", BY_NAME[queue].dies]
        yield f"| {' | '.join(cells)} |"


def _spread(sample: Sample) -> str:
    if len(sample.values) == 1:
        return _number(sample.median)
    return f"**{_number(sample.median)}** ({_number(sample.low)} to {_number(sample.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _called(queue: str, figure: Figure) -> str:
    store = BY_NAME[queue].store_beside(figure.store)
    return queue if store == figure.store else f"{queue} (on {store})"


def _queues(result: Result) -> Iterator[str]:
    yield "### The queues"
    yield ""
    yield "| queue | version | settings | when a worker is killed |"
    yield "|---|---|---|---|"
    for peer in PEERS:
        if peer.name != SINGLY and (about := result.about.get(peer.name)):
            promise = f"{peer.promise} ([documentation]({peer.source}))"
            yield f"| {peer.name} | {about.version} | {about.settings} | {promise} |"
