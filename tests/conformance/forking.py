"""Forked children of a test."""

from __future__ import annotations

import os
import traceback


def fork_and(work):
    """Fork a child that calls `work` and exits with 0 if that succeeds."""
    if pid := os.fork():
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
