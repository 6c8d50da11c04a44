"""Where a worker's time goes, taken inside its process: every statement timed, every thread sampled.

A tracing profiler would make Python look slower than it is compared with the database. A sample of every
thread every few milliseconds costs the same, whatever the threads do.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import msgspec

EVERY = 0.001
SWITCH = 0.0005
"""Seconds after which a thread that runs Python yields to another: short, so that it is sampled in the middle of its
work and not only where it waits."""
_HERE = "treadle-sample"


class Thread(msgspec.Struct):
    """What one thread did."""

    cpu: float
    """Seconds of CPU."""
    statements: dict[str, tuple[int, float, float]]
    """For each: calls, seconds, and seconds of CPU. The rest is waiting for server, disk or interpreter."""
    found: dict[str, int]
    """How many samples found it in each function."""
    busy: dict[str, float]
    """Seconds of CPU, by the function that the next sample found it in."""


class Profile(msgspec.Struct):
    seconds: float
    threads: dict[str, Thread]


_timed: defaultdict[str, dict[str, list[float]]] = defaultdict(dict)


def note(statement: str, seconds: float, cpu: float) -> None:
    """Add the time that this thread spent on a statement."""
    mine = _timed[threading.current_thread().name]
    total = mine.setdefault(statement, [0, 0.0, 0.0])
    total[0] += 1
    total[1] += seconds
    total[2] += cpu


def time_statements(url: str) -> None:
    """Make every new connection time its statements."""
    if url.startswith("sqlite:"):
        from bench.sqlite.statement_timing import time_statements
    elif url.startswith("libsql"):
        from bench.libsql.statement_timing import time_statements
    else:
        from bench.postgres.statement_timing import time_statements
    time_statements()


class Sampler:
    """Samples every thread but its own, until stopped."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._busy: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._cpu: dict[str, float] = {}
        self._thread = threading.Thread(target=self._sample, name=_HERE, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(EVERY):
            frames = sys._current_frames()
            for thread in threading.enumerate():
                frame = frames.get(thread.ident or 0)
                if frame is not None and thread.name != _HERE:
                    self._count(thread, _where(frame))

    def _count(self, thread: threading.Thread, where: str) -> None:
        cpu = _cpu(thread)
        self._found[thread.name][where] += 1
        self._busy[thread.name][where] += cpu - self._cpu.get(thread.name, cpu)
        self._cpu[thread.name] = cpu

    def stop(self) -> dict[str, Thread]:
        self._stop.set()
        self._thread.join()
        return {
            name: Thread(
                cpu=sum(self._busy[name].values()),
                statements={sql: (int(calls), wall, cpu) for sql, (calls, wall, cpu) in _timed[name].items()},
                found=dict(found),
                busy=dict(self._busy[name]),
            )
            for name, found in self._found.items()
        }


def profiled(run: Callable[[], object], path: str) -> None:
    """Run it, and write a Profile to `path`."""
    _timed.clear()
    sys.setswitchinterval(SWITCH)
    began, sampler = time.perf_counter(), Sampler()
    run()
    profile = Profile(time.perf_counter() - began, sampler.stop())
    Path(path).write_bytes(msgspec.json.encode(profile))


def _where(frame: FrameType) -> str:
    """The function, by its module's last two names; a statement shows as the function that executes it."""
    module = ".".join(str(frame.f_globals.get("__name__", "?")).split(".")[-2:])
    return f"{module}:{frame.f_code.co_qualname}"


def _cpu(thread: threading.Thread) -> float:
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    try:
        return time.clock_gettime(clock_of(thread.ident)) if clock_of and thread.is_alive() else 0.0
    except OSError:
        return 0.0
