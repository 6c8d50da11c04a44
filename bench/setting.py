"""What a run measures with: its sizes, its backend, and where it reports progress."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from bench.backend import Backend

CONCURRENCY = 500
"""Slots of a worker in the drains. More slots are larger batches and fewer fsyncs: async no-ops ran at 11,000/s with
100, 14,000 with 200, 22,000 with 500 and 25,000 with 1,000; threads were best with 500."""
PROCESSES = 2 * (os.cpu_count() or 1)
"""Slots where each is a child process."""


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    repeats: int
    pairs: int
    """Repetitions of a backlog scenario, whose ratios are near 1 and must be distinguished from noise."""
    noop: int
    noop_thread: int
    noop_process: int
    bulk: int
    seconds: float
    """For each of: enqueue singly, from threads, from tasks, and commits without treadle."""
    pickups: int
    idle: float
    backlog: int
    """Jobs in each drain of a backlog scenario."""
    many: int
    few: int
    keys: int
    """Tenants, and pairs of queue and type, where there are very many."""
    churn: int
    """Jobs in a drain with an old snapshot, of which the last `tail` are judged."""
    tail: int

    def scaled(self, n: int) -> Sizes:
        """With `n` async no-ops in a drain, and the others in proportion."""
        share = n / self.noop
        names = ("noop", "noop_thread", "noop_process", "bulk", "backlog", "churn", "tail")
        return msgspec.structs.replace(self, **{name: max(10, round(getattr(self, name) * share)) for name in names})


FULL = Sizes(3, 15, 50_000, 20_000, 2_000, 50_000, 1.0, 250, 10.0, 25_000, 1_000_000, 100_000, 10_000, 200_000, 20_000)
QUICK = Sizes(1, 1, 4_000, 2_000, 100, 4_000, 0.3, 25, 1.5, 2_000, 20_000, 5_000, 100, 10_000, 2_000)


class Setting(msgspec.Struct, frozen=True):
    """One run."""

    backend: Backend
    sizes: Sizes
    concurrency: int
    """Slots of each worker, and so the largest possible batch."""
    say: Callable[[str], None]
