"""What tells one process from every other, on this machine and after a restart of it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_COUNTERS = {
    "memory": "/sys/fs/cgroup/memory{}/memory.oom_control",
    "": "/sys/fs/cgroup{}/memory.events",
}
"""Where a control group counts its kills, by its controllers: of version 1, and of version 2, which names none."""


def identity(supervisor: int | None = None) -> dict[str, Any]:
    """This boot of the machine, this pid namespace, this pid, and when the process with that pid started.

    Empty where the system does not tell (no /proc): then only a worker's heartbeat says whether it lives.
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


def name() -> str:
    """`hostname-pid`, as people know a worker."""
    return f"{socket.gethostname()}-{os.getpid()}"


def is_dead(host: Mapping[str, Any], *, one_machine: bool) -> bool:
    """Whether the process that `host` describes is certainly gone. False also means: cannot say from here."""
    here = identity()
    if not here or not host:
        return False
    if host.get("boot") != here["boot"]:
        return one_machine  # then it was a process of this machine, before it restarted
    if host.get("namespace") != here["namespace"]:
        return False
    supervisor = host.get("supervisor")
    if supervisor and not is_dead(supervisor, one_machine=one_machine):
        return False  # who knows best what it had started, and returns its jobs
    try:
        return _started(int(host["pid"])) != host.get("started")
    except (OSError, KeyError, ValueError):
        return True


def out_of_memory_kills() -> int | None:
    """How many processes the kernel has killed for want of memory so far, or None where it does not say.

    Counted in our control group, which our children share. Only where it has no count of its own, on the whole machine:
    a kill elsewhere would then look like one of ours.
    """
    for path in (*memory_counters(_read("/proc/self/cgroup")), "/proc/vmstat"):
        found = re.search(r"^oom_kill (\d+)$", _read(path), re.MULTILINE)
        if found:
            return int(found[1])
    return None


def memory_counters(groups: str) -> list[str]:
    """The files that may have the count of a process whose /proc/…/cgroup says `groups`.

    In a container the group may be at the top of what is mounted, and its path be that of the world outside.
    """
    paths = {controllers: path.rstrip("/") for _, controllers, path in (at.split(":", 2) for at in groups.splitlines())}
    return [
        file.format(at)
        for controllers, file in _COUNTERS.items()
        if controllers in paths
        for at in dict.fromkeys((paths[controllers], ""))
    ]


def raise_oom_score(by: int = 100) -> None:
    """When the kernel wants memory it may kill more than the one who took it: then us before our parent.

    The more so, the higher `by` is. With 1000 it takes us whoever else is there, be we as small as we may.
    """
    with contextlib.suppress(OSError, ValueError):
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(1000, int(score.read_text()) + by)))


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
