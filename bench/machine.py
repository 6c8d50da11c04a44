"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from bench.backend import About
from bench.setting import PROCESSES, Setting, Sizes


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cores: int
    cpu: str
    python: str
    database: About
    load: float
    """Processes that wanted to run just before: the one-minute load average."""
    concurrency: int
    processes: int
    sizes: Sizes

    def lines(self) -> list[str]:
        """The head of the report."""
        busy = f"; {self.load:.1f} processes were busy before this started" if self.load >= 1 else ""
        n, about = self.sizes, self.database
        settings = ", ".join(f"{name} = {value}" for name, value in about.settings.items())
        often = f"each the middle of {n.repeats}" if n.repeats > 1 else "each once: too little to judge"
        return [
            f"{self.cores} cores, {self.cpu}; Python {self.python}{busy}",
            f"{about.database}; {about.where}",
            settings,
            f"workers with {self.concurrency} slots, {self.processes} where each slot is a process",
            f"drains of {n.noop:,} async, {n.noop_thread:,} thread, {n.noop_process:,} process no-ops; {often}",
        ]


def describe(setting: Setting) -> Machine:
    """This machine, now."""
    return Machine(
        cores=cores(),
        cpu=cpu(),
        python=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        database=setting.backend.about(),
        load=os.getloadavg()[0],
        concurrency=setting.concurrency,
        processes=PROCESSES,
        sizes=setting.sizes,
    )


def cores() -> int:
    """Those that this process may use: in a container, fewer."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"
