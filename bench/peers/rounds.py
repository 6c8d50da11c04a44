"""Rounds: each measures all queues of a figure, one after the other, so that a slow machine slows all of them down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bench.peers.figures import Figure
from bench.peers.idle import idle
from bench.peers.measure import Lab
from bench.peers.peer import Peer, PeerFailed

Values = dict[str, dict[str, float]]
"""By row, and by the name of the queue."""


class Round(msgspec.Struct, frozen=True):
    """One repetition of a figure. Only what was measured in the same round is divided by each other."""

    figure: str
    values: Values


def measure(lab: Lab, figure: Figure, peers: Sequence[Peer], repetitions: int) -> Iterator[Round]:
    """All rounds of a figure. A queue that fails is left out from then on."""
    if figure.measure is None:
        yield from (Round(figure.key, values) for values in idle(lab, figure, peers, repetitions))
        return
    running = list(peers)
    for repetition in range(1, repetitions + 1):
        values: Values = {row: {} for row in figure.rows}
        for peer in running[:: 1 if repetition % 2 else -1]:
            lab.say(f"{figure.key}: {peer.name} ({repetition} of {repetitions})")
            try:
                for row, value in figure.measure(lab, peer, figure.store).items():
                    values[row][peer.name] = value
            except PeerFailed as failed:
                lab.leave_out(figure.key, peer, failed)
                running.remove(peer)
        yield Round(figure.key, values)
