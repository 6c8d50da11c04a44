"""What `./script/example` shows: bars while jobs run, and a table of what happened. No example needs it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import httpx2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from treadle import Treadle

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
"""Seconds after which a demo gives up. The longest takes a tenth of it."""
STYLES = {"completed": "green", "failed": "red", "pending": "cyan", "processing": "blue", "blocked": "magenta"}


class Screen:
    """A temporary folder, the processes that work in it, and what the user sees of them."""

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"treadle-{name}-")).resolve()
        self.console = Console(soft_wrap=not sys.stdout.isatty())
        self._processes: list[subprocess.Popen[bytes]] = []
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that __exit__ stops the processes
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Processes

    def start(self, module: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Run `python -m module`. Its output goes to a file."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to the demo, which then stops them
            )
        self._processes.append(process)
        return process

    def serve(self, app: str, port: int, **environment: str) -> subprocess.Popen[bytes]:
        """Start a web server with an ASGI app, and return when it answers."""
        process = self.start("uvicorn", app, "--port", str(port), "--log-level", "warning", **environment)
        self.until(lambda: _answers(port), process)
        return process

    def dashboard(self, port: int) -> str:
        """The address of a server's dashboard, with the newest login that it has printed."""
        logins = re.findall(r"\?login=\S+", (self.folder / "log").read_text())
        return f"http://127.0.0.1:{port}/dashboard/{logins[-1]}"

    def kill(self, process: subprocess.Popen[bytes], name: str, held: int) -> None:
        """kill -9, like a crash."""
        process.kill()
        process.wait()
        self.say("✗", f"kill -9 {name}: it dies while it runs {held} jobs", "red")

    # Output

    def say(self, mark: str, text: str, style: str | None = None) -> None:
        self.console.print(f"{mark} {text}", style=style, highlight=False)

    def watch(self, td: Treadle, until: Callable[[Counter[str]], bool], worker: subprocess.Popen[bytes]) -> None:
        """Show bars by type, read from the database. Without a terminal, print a line every second."""
        bars = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(40, complete_style="cyan", finished_style="green"),
            MofNCompleteColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        tasks: dict[str, Any] = {}
        printed = time.monotonic()
        with bars:
            while True:
                by_type: dict[str, Counter[str]] = {}
                for row in td.counts(("status", "type")):
                    by_type.setdefault(row["type"], Counter())[row["status"]] += row["count"]
                for type, counts in sorted(by_type.items()):
                    if type not in tasks:
                        tasks[type] = bars.add_task(type)
                    bars.update(tasks[type], completed=counts["completed"], total=counts.total())
                sums: Counter[str] = sum(by_type.values(), Counter())
                over = until(sums)
                self._check(worker)
                if not self.console.is_terminal and (over or time.monotonic() - printed > 1):
                    printed = time.monotonic()
                    self._line(sums)
                if over:
                    return
                time.sleep(0.05)

    def _line(self, sums: Counter[str]) -> None:
        parts = [f"{sums[status]} {status}" for status in STYLES if sums[status]]
        self.say(" ", f"{time.monotonic() - self._began:4.1f} s  {', '.join(parts)}")

    def table(self, title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*(f"[{STYLES[text]}]{text}[/]" if (text := str(cell)) in STYLES else text for cell in row))
        self.console.print()
        self.console.print(table)

    def stay(self, *where: str) -> None:
        """At a terminal, keep everything running until Ctrl-C. Otherwise the demo ends."""
        self.say("•", f"{time.monotonic() - self._began:.1f} s in total")
        if not self.console.is_terminal:
            return
        self.say("•", "still running until you press Ctrl-C:")
        for place in where:
            self.say(" ", f"  {place}")
        try:
            signal.pause()
        except KeyboardInterrupt:
            self.say("•", "stopped; its folder is deleted")

    # Waiting

    def until(self, look: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not look():
            self._check(process)
            if time.monotonic() > deadline:
                raise SystemExit(f"no answer after {PATIENCE:g} s; the log is {self.folder / 'log'}")
            time.sleep(0.05)

    def _check(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is not None:
            raise SystemExit(f"a process ended by itself:\n{(self.folder / 'log').read_text()[-2000:]}")
        if time.monotonic() - self._began > PATIENCE and not self.console.is_terminal:
            raise SystemExit(f"not done after {PATIENCE:g} s:\n{(self.folder / 'log').read_text()[-2000:]}")


def all_ended(counts: Counter[str]) -> bool:
    return not any(counts[status] for status in ("pending", "processing", "blocked"))


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        httpx2.get(f"http://127.0.0.1:{port}/openapi.json", timeout=5)
    except httpx2.TransportError:
        return False
    return True
