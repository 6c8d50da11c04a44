"""Clean up when the tests have ended, even by kill -9."""

from __future__ import annotations

import contextlib
import subprocess


class Watch:
    """A shell script that reads lines from the tests. When its input closes, the tests have ended, and it cleans up."""

    def __init__(self, script: str, *arguments: str) -> None:
        # In its own session, so that a signal to the tests' process group does not end it.
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def finish(self) -> None:
        """Let it clean up now."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(60)
