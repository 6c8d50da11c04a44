"""Where the time of a drain goes: by thread, by statement, by function."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.drain import rate
from bench.sample import Profile, Thread
from bench.setting import Setting
from bench.workers import wait_for, working

LOOP = "event loop"
THREADS = {"MainThread": LOOP, "treadle-claim_0": "claim", "treadle-settle_0": "settle"}
IDLE = ("selectors:", "thread:_worker", "threading:", "queue:")
"""Innermost frames of a thread that has nothing to do."""
TURN = "connection:writing"


class Profiled(msgspec.Struct):
    """A drain under the profiler."""

    jobs: int
    rate: float
    driver: str
    profile: Profile


def take(setting: Setting) -> Profiled:
    """Drain async no-ops with one process, profiled."""
    n = setting.sizes.noop
    setting.say(f"profile: a drain of {n:,} async no-ops")
    database = setting.backend.new("profile")
    try:
        with tempfile.TemporaryDirectory() as directory:
            path, jobs = Path(directory) / "profile.json", database.waiting(n)
            with working(database, 1, setting.concurrency, str(path)) as workers:
                wait_for(workers, lambda: database.completed("noop"), n)
            per_second = rate(database.times(jobs))
            found = msgspec.json.decode(path.read_bytes(), type=Profile)
        return Profiled(n, per_second, setting.backend.driver, found)
    finally:
        database.close()


def show(console: Console, profiled: Profiled) -> None:
    """Three tables: threads, statements, functions."""
    seconds = profiled.jobs / profiled.rate
    rate_of_it = f"{profiled.rate:,.0f} jobs/s under the profiler"
    head = f"where the time goes: {profiled.jobs:,} async no-ops in {seconds:.2f} s, {rate_of_it}"
    console.print()
    console.print(Text(head, style="bold"))
    threads = {THREADS[name]: thread for name, thread in profiled.profile.threads.items() if name in THREADS}
    console.print(_by_thread(threads, seconds, profiled.driver))
    console.print(_by_statement(threads, profiled.jobs))
    console.print(_by_function(threads, profiled.jobs))


def _by_thread(threads: dict[str, Thread], seconds: float, driver: str) -> Table:
    table = _table(
        "thread",
        "CPU s",
        "of a core",
        f"in {driver}",
        "in Python",
        "statements last s",
        "COMMITs",
        "waits for its turn",
        "idle",
    )
    for name, thread in threads.items():
        lasted = sum(spent for _, spent, _ in thread.statements.values())
        in_driver = sum(cpu for _, _, cpu in thread.statements.values())
        commits = thread.statements.get("COMMIT", (0, 0.0, 0.0))[1]
        samples = sum(thread.found.values())
        turn = sum(n for where, n in thread.found.items() if TURN in where)
        idle = sum(n for where, n in thread.found.items() if where.startswith(IDLE))
        cpu = (f"{thread.cpu:.2f}", _share(thread.cpu, seconds), f"{in_driver:.2f}", f"{thread.cpu - in_driver:.2f}")
        table.add_row(name, *cpu, f"{lasted:.2f}", f"{commits:.2f}", _share(turn, samples), _share(idle, samples))
    return table


def _by_statement(threads: dict[str, Thread], jobs: int) -> Table:
    rows = [(*spent, sql, name) for name, thread in threads.items() for sql, spent in thread.statements.items()]
    table = _table("statement", "thread", "calls", "lasts s", "CPU s", "CPU µs a job")
    for calls, lasts, cpu, sql, name in sorted(rows, key=lambda row: -row[1])[:16]:
        table.add_row(sql, name, f"{calls:,}", f"{lasts:.3f}", f"{cpu:.3f}", f"{cpu / jobs * 1e6:.2f}")
    return table


def _by_function(threads: dict[str, Thread], jobs: int) -> Table:
    """The event loop's functions by the CPU they took themselves. For the other threads, see the statements."""
    table = _table("function", "thread", "CPU s", "CPU µs a job", "of its CPU")
    for name, thread in threads.items():
        for where, cpu in sorted(thread.busy.items(), key=lambda item: -item[1])[: 24 if name == LOOP else 6]:
            table.add_row(where, name, f"{cpu:.3f}", f"{cpu / jobs * 1e6:.2f}", _share(cpu, thread.cpu))
    return table


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else ""


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False, title="")
    for name in names:
        table.add_column(name, justify="left" if name in ("thread", "statement", "function") else "right", no_wrap=True)
    return table
