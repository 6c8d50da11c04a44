"""Idle: what a worker with nothing to do costs. All wait at the same time, because waiting hardly disturbs others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.peers.figures import Figure
from bench.peers.measure import Lab
from bench.peers.peer import Peer, PeerFailed
from bench.peers.place import Place
from bench.peers.process import Program, producing, wait_for, working
from bench.processes import cpu_seconds, family

SETTLED = 3.0
"""Seconds after its last job until a worker polls as rarely as it does when idle."""


class Idler(msgspec.Struct, frozen=True):
    """A worker that has run one job, and has no other."""

    peer: Peer
    place: Place
    worker: Program

    def used(self) -> tuple[float, int, int]:
        """CPU seconds and transactions so far, and connections now."""
        self.worker.check()
        return (_cpu(self.worker.pid), *self.place.activity())


def idle(lab: Lab, figure: Figure, peers: Sequence[Peer], repetitions: int) -> Iterator[dict[str, dict[str, float]]]:
    """For each window of some seconds: the values of all workers, by row."""
    with contextlib.ExitStack() as stack:
        idlers = []
        for peer in peers:
            lab.say(f"{figure.key}: starting {peer.name}")
            try:
                idlers.append(stack.enter_context(_idler(lab, figure, peer)))
            except PeerFailed as failed:
                lab.leave_out(figure.key, peer, failed)
        time.sleep(SETTLED)
        for repetition in range(1, repetitions + 1):
            lab.say(f"{figure.key}: {len(idlers)} workers, for {lab.sizes.idle:g} s ({repetition} of {repetitions})")
            yield _window(lab.sizes.idle, figure, idlers)


def _window(seconds: float, figure: Figure, idlers: Sequence[Idler]) -> dict[str, dict[str, float]]:
    before, began = [idler.used() for idler in idlers], time.monotonic()
    time.sleep(seconds)
    after, passed = [idler.used() for idler in idlers], time.monotonic() - began
    values: dict[str, dict[str, float]] = {row: {} for row in figure.rows}
    for idler, first, last in zip(idlers, before, after, strict=True):
        found = {"cpu": 60 * (last[0] - first[0]) / passed}
        if last[2]:  # it is connected to PostgreSQL
            found |= {"transactions": (last[1] - first[1]) / passed, "connections": last[2]}
        for row, value in found.items():
            values[row][idler.peer.name] = value
    return values


@contextlib.contextmanager
def _idler(lab: Lab, figure: Figure, peer: Peer) -> Iterator[Idler]:
    with lab.places.new(peer.store_beside(figure.store)) as place:
        with producing(peer, place, "async") as (producer, lab.about[peer.name]):
            producer.ask("bulk", 1)
        with working(peer, place, "async") as workers:
            wait_for(workers, place, 1)
            yield Idler(peer, place, workers[0])


def _cpu(pid: int) -> float:
    """In nanoseconds where the system counts them: a tick of 10 ms is more than some workers use in a minute."""
    try:
        stats = [stat for one in family(pid) for stat in Path(f"/proc/{one}/task").glob("*/schedstat")]
        return sum(int(stat.read_text().split()[0]) for stat in stats) / 1e9
    except OSError:
        return cpu_seconds(pid)
