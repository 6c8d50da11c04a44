"""This process on its host: its identity, the memory limits it lives under, and the signals that end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

REPLACE_ME = 75
"""The exit code of a worker that cannot work any more: its threads are stuck, or a part has ended. It has released its
jobs, and its supervisor starts another one."""
ONE_SIGNAL = 1.0
"""Seconds within which signals count as one: a service manager and a supervisor may both send the first."""

_COUNTERS = {"memory": "/sys/fs/cgroup/memory{}/memory.oom_control", "": "/sys/fs/cgroup{}/memory.events"}
"""Where a control group counts its kills, by its controllers: for version 1, and for version 2, which names none."""


def identity(supervisor: int | None = None) -> dict[str, Any]:
    """This boot of the machine, this pid namespace, this pid, and when the process with that pid started.

    Empty on a system without /proc: then only a worker's heartbeat says whether it lives.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        here = {"boot": boot, "namespace": os.readlink("/proc/self/ns/pid")}
        own = {**here, "pid": os.getpid(), "started": _started(os.getpid())}
        if supervisor is None:
            return own
        return {**own, "supervisor": {**here, "pid": supervisor, "started": _started(supervisor)}}
    except OSError:
        return {}


def is_dead(host: Mapping[str, Any], *, single_host: bool) -> bool:
    """Whether the process that `host` describes is certainly gone. False also means: cannot say from here."""
    here = identity()
    if not here or not isinstance(host.get("boot"), str):
        return False
    if host.get("boot") != here["boot"]:
        return single_host  # then it was a process of this machine, before it restarted
    if host.get("namespace") != here["namespace"]:
        return False
    supervisor = host.get("supervisor")
    if isinstance(supervisor, dict) and not is_dead(supervisor, single_host=single_host):
        return False  # the supervisor knows what its worker had started, and returns the jobs
    try:
        return _started(int(host["pid"])) != host.get("started")
    except OSError:
        return True
    except (KeyError, TypeError, ValueError):
        return False  # its row was broken by hand


def out_of_memory_kills() -> int | None:
    """The number of processes that the kernel has killed because memory ran out, or None where it does not say.

    The count is that of our control group, which our children share. If the group has none, it is that of the whole
    machine: then a kill elsewhere looks like one in this group.
    """
    for path in (*memory_counters(_read("/proc/self/cgroup")), "/proc/vmstat"):
        found = re.search(r"^oom_kill (\d+)$", _read(path), re.MULTILINE)
        if found:
            return int(found[1])
    return None


def memory_counters(groups: str) -> list[str]:
    """The files that may have the count for a process whose /proc/…/cgroup contains `groups`.

    In a container the group may be at the top of what is mounted, while its path is the one outside the container.
    """
    paths = {controllers: path.rstrip("/") for _, controllers, path in (at.split(":", 2) for at in groups.splitlines())}
    return [
        file.format(at)
        for controllers, file in _COUNTERS.items()
        if controllers in paths
        for at in dict.fromkeys((paths[controllers], ""))
    ]


def raise_oom_score(by: int = 100) -> None:
    """Have the kernel kill this process before its parent when memory runs out: it may kill more than the culprit.

    A higher `by` makes it more likely. With 1000 the kernel takes this process first, however small it is.
    """
    with contextlib.suppress(OSError, ValueError):
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(1000, int(score.read_text()) + by)))


def until_signalled(again: Callable[[], None]) -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets. Later ones call `again`."""
    stop = asyncio.Event()
    first_at = 0.0

    def signalled() -> None:
        nonlocal first_at
        if not stop.is_set():
            first_at = time.monotonic()
            stop.set()
        elif time.monotonic() - first_at > ONE_SIGNAL:
            again()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, signalled)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(signalled))
    return stop


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, without waiting for what handlers have left behind: threads in the loop's pool, and tasks that
    do not end when they are cancelled."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _started(pid: int) -> int:
    """Clock ticks between boot and the start of a process; a zombie has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return int(fields[19])
