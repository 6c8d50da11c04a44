"""One measurement of one queue. All start with a new place, and all queues do the same work in it."""

from __future__ import annotations

from collections.abc import Callable

import click
import msgspec

from bench.measure import percentile
from bench.peers.peer import TREADLE, Peer, PeerFailed, Store
from bench.peers.place import STAMP, Place, Places
from bench.peers.process import About, producing, wait_for, working


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured, each time."""

    drain: int
    bulk: int
    seconds: float
    """For enqueueing singly."""
    pickups: int
    idle: float


class Lab(msgspec.Struct, frozen=True):
    """One run: where, how much, and what the programs have said of themselves."""

    places: Places
    sizes: Sizes
    about: dict[str, About]
    problems: dict[str, str]
    """Why a queue was left out."""
    say: Callable[[str], None]

    def leave_out(self, figure: str, peer: Peer, failed: PeerFailed) -> None:
        """Go on without it; but not without treadle, with which all are compared."""
        if peer.name == TREADLE:
            raise click.ClickException(f"{figure}: {failed}")
        self.problems[f"{peer.name}, {figure}"] = str(failed)
        self.say(f"{figure}: left out {peer.name}: {failed}")


Measure = Callable[[Lab, Peer, Store], dict[str, float]]
"""Values by the name of their row. A store is treadle's; a peer without it uses its only one."""


def drain(kind: str, processes: int) -> Measure:
    """Jobs per second from the first handler to the last, of jobs that waited before the workers started."""

    def measure(lab: Lab, peer: Peer, store: Store) -> dict[str, float]:
        n = max(100, round(lab.sizes.drain * peer.share))
        with lab.places.new(peer.store_beside(store)) as place:
            with producing(peer, place, kind) as (producer, lab.about[peer.name]):
                producer.ask("bulk", n)
            place.settle()
            with working(peer, place, kind, processes) as workers:
                wait_for(workers, place, n)
            stamps = read(place)
        if len(stamps) != n:
            raise PeerFailed(f"{n:,} jobs ran {len(stamps):,} times")
        return {"": (n - 1) / (stamps[-1] - stamps[0]) * 1e6}

    return measure


def enqueue(command: str) -> Measure:
    """Jobs per second: `singly`, in `bulk`, or treadle's from `threads` beside others singly."""

    def measure(lab: Lab, peer: Peer, store: Store) -> dict[str, float]:
        with (
            lab.places.new(peer.store_beside(store)) as place,
            producing(peer, place, "async") as (producer, lab.about[peer.name]),
        ):
            producer.ask("singly", 0.1)  # the first calls connect
            asked = "singly" if command == "threads" and peer.name != TREADLE else command
            return {"": float(producer.ask(asked, lab.sizes.bulk if asked == "bulk" else lab.sizes.seconds))}

    return measure


def pickup(lab: Lab, peer: Peer, store: Store) -> dict[str, float]:
    """Milliseconds from the return of an enqueue to the start of the handler in another process, which was idle."""
    with (
        lab.places.new(peer.store_beside(store)) as place,
        producing(peer, place, "async") as (producer, lab.about[peer.name]),
        working(peer, place, "async") as workers,
    ):
        producer.ask("bulk", 1)  # this one finds the worker starting, and is not counted
        wait_for(workers, place, 1)
        returned = producer.ask("pickup", lab.sizes.pickups)
        wait_for(workers, place, 1 + len(returned))
        started = read(place)[1:]
    latencies = [(start - end) / 1000 for start, end in zip(started, returned, strict=True)]
    return {"p50": percentile(latencies, 50), "p99": percentile(latencies, 99)}


def read(place: Place) -> list[int]:
    """When the handlers ran, in microseconds, in order."""
    content = place.stamps.read_bytes()
    return sorted(int(content[at : at + STAMP]) for at in range(0, len(content), STAMP))
