"""Takes away from this process what Windows lacks, and then runs a file, as `python` does.

There is no Windows in the tests. This finds what is used at import, or without a check; it cannot find what behaves
differently there.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import importlib
import os
import pkgutil
import runpy
import select
import signal
import sys
import types
from typing import Any, NoReturn

MODULES = ("fcntl", "termios", "tty", "pty", "resource", "pwd", "grp", "syslog", "_posixshmem", "curses", "readline")
OF_OS = """
    register_at_fork fork forkpty fork_exec killpg getpgid setpgid setsid getuid geteuid getgid getegid fchmod
    fchown chown pread pwrite posix_spawn WNOHANG WIFEXITED waitstatus_to_exitcode O_CLOEXEC O_NOFOLLOW O_NONBLOCK
    uname mkfifo sched_getaffinity nice getloadavg
"""
OF_SIGNAL = """
    SIGKILL SIGALRM SIGSTOP SIGCONT SIGHUP SIGUSR1 SIGUSR2 SIGCHLD SIGPIPE setitimer ITIMER_REAL alarm
    pthread_sigmask pthread_kill sigwait
"""


def import_all() -> None:
    """Import treadle with all that it needs, and forget it: other packages, and Python's own, keep what they have."""
    import treadle

    for module in pkgutil.walk_packages(treadle.__path__, "treadle."):
        if module.name != "treadle.__main__" and not module.name.startswith("treadle.contrib"):
            importlib.import_module(module.name)
    for name in [name for name in sys.modules if name.split(".")[0] == "treadle"]:
        del sys.modules[name]


def take_away() -> None:
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL), (select, "poll epoll")):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.modules["msvcrt"] = _msvcrt()
    asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = _not_implemented  # type: ignore[method-assign]
    ctypes.CDLL = _no_library  # type: ignore[assignment,misc]
    sys.platform = "win32"


def _msvcrt() -> Any:
    """Windows' locks of a file, by those of this system."""
    made: Any = types.ModuleType("msvcrt")
    made.LK_NBLCK = 2

    def locking(fd: int, mode: int, n: int) -> None:
        assert (mode, n) == (made.LK_NBLCK, 1)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None

    made.locking = locking
    return made


def _not_implemented(*_: object) -> NoReturn:
    raise NotImplementedError


def _no_library(name: str | None, *_: object, **__: object) -> NoReturn:
    raise TypeError(f"there is no library {name!r}")


if __name__ == "__main__":
    import_all()
    take_away()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
