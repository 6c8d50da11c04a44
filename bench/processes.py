"""CPU time and memory of a process and its children, as the system reports it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """What the process and its running children have used so far."""
    return sum(_cpu(one) for one in family(pid))


def megabytes(pid: int) -> float:
    """Resident memory of the process and its children. Pages that they share are counted for each."""
    return sum(_memory(one) for one in family(pid))


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    found = [pid]
    for parent in found:
        found += _children(parent)
    return found


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
        return [int(child) for child in found.stdout.split()]


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        seconds = 0.0
        for part in _ps(pid, "time").split(":"):
            seconds = seconds * 60 + float(part)
        return seconds


def _memory(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return float(_ps(pid, "rss")) * 1024 / 1e6


def _ps(pid: int, what: str) -> str:
    """Where there is no /proc. A process that has ended uses nothing."""
    found = subprocess.run(["ps", "-o", f"{what}=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "0"
