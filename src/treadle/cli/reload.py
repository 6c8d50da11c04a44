"""`treadle worker --reload`: a worker process ends when a source file of the app changes, and is replaced.

Each process looks at the files that it has imported itself. What is installed is left out.
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from treadle.app import Treadle
from treadle.cli.base import Shared
from treadle.cli.errors import CommandError, explained
from treadle.errors import TreadleError
from treadle.worker import host

EVERY = 0.5
"""Seconds between two looks at the files."""
COARSE = 10_000_000
"""Nanoseconds by which the clock of a file system may be behind."""
INSTALLED = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
Version = tuple[int, int]
"""The time of the last change, in nanoseconds, and the size."""


class SourceFiles:
    """The files of the app, and how each was when it was first seen."""

    def __init__(self) -> None:
        self._started = time.time_ns() - COARSE
        self._seen: dict[str, Version] = {}

    def changed(self, more: Iterable[str] = ()) -> str | None:
        """A file that has changed since it was imported. One that is missing is being replaced by an editor."""
        for path in {*_imported(), *more}:
            try:
                found = os.stat(path)
            except OSError:
                continue
            version = (found.st_mtime_ns, found.st_size)
            known = self._seen.setdefault(path, version)
            # One that was written since the process started may have been read before that.
            if version != known or self._started < found.st_mtime_ns <= time.time_ns():
                return path
        return None


def _imported() -> Iterator[str]:
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not path.startswith(INSTALLED):
            yield path


class Reloader(threading.Thread):
    """Sends this process a SIGTERM when a file has changed: the worker lets its jobs end, or releases them."""

    def __init__(self, files: SourceFiles, say: Callable[[str], None]) -> None:
        super().__init__(name="treadle-reload", daemon=True)
        self._files, self._say = files, say
        self.has_changed = False

    def run(self) -> None:
        while (path := self._files.changed()) is None:
            time.sleep(EVERY)
        self.has_changed = True
        self._say(f"{_shown(path)} has changed: the worker restarts")
        os.kill(os.getpid(), signal.SIGTERM)


def load_or_wait(load: Callable[[], Treadle], shared: Shared, files: SourceFiles, *, may_wait: bool) -> Treadle:
    """Load the app. If its new code cannot be imported, say so, and wait until somebody has corrected it."""
    try:
        return load()
    except (CommandError, TreadleError) as error:
        if not may_wait:
            raise
        (error if isinstance(error, CommandError) else explained(error)).show()
        shared.note("the worker waits until you change it")
        culprits = set(_in_traceback(error))
        while files.changed(culprits) is None:
            time.sleep(EVERY)
        sys.exit(host.REPLACE_ME)


def _in_traceback(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield from (frame.filename for frame in traceback.extract_tb(error.__traceback__))
        if isinstance(error, SyntaxError) and error.filename:
            yield error.filename
        error = error.__context__


def _shown(path: str) -> str:
    here = Path(path)
    return str(here.relative_to(Path.cwd())) if here.is_relative_to(Path.cwd()) else path
