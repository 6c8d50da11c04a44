"""Which leases a worker process has started and not settled, in memory that outlives it.

When a child dies, its supervisor reads here whom to charge: writing every start to the database would cost a commit
each. The first bytes name the worker, so that the supervisor needs none of the user's code.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import NamedTuple

import msgspec

_HEADER = 4096
VARIABLE = "TREADLE_BOARD"


class Owner(NamedTuple):
    """The worker that writes on a board, and its database."""

    worker: str
    url: str


class Inflight:
    """A cell per lease: its number (negative: started in a child of its own), or 0 if the cell is free.

    A lease keeps its cell until its outcome is committed, not just until its handler has ended: what a handler leaves
    behind can still kill the process. A worker has no more than twice its `concurrency` in hand and unsettled.
    """

    def __init__(self, fd: int, cells: int, supervisor: int | None = None, *, in_turn: bool = False) -> None:
        self.fd = fd
        self.supervisor = supervisor
        self.in_turn = in_turn
        """Whether somebody has worked under this supervisor before: then the store can be used, sooner or later."""
        self._map = mmap.mmap(fd, _HEADER + 8 * cells)
        self._cells = memoryview(self._map)[_HEADER:].cast("q")
        self._free = list(range(cells))
        self._cell_of: dict[int, int] = {}

    @classmethod
    def create(cls, cells: int) -> Inflight:
        """A new board, in a file without a name that child processes can inherit."""
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        os.ftruncate(fd, _HEADER + 8 * cells)
        os.set_inheritable(fd, True)
        return cls(fd, cells)

    @classmethod
    def inherited(cls) -> Inflight | None:
        """The board that a supervisor gave to this process, if one did."""
        given = os.environ.pop(VARIABLE, None)
        if given is None:
            return None
        fd, supervisor, in_turn = map(int, given.split(":"))
        os.set_inheritable(fd, False)
        return cls(fd, (os.fstat(fd).st_size - _HEADER) // 8, supervisor, in_turn=bool(in_turn))

    def for_a_child(self, *, in_turn: bool) -> str:
        """What `inherited` reads in the child. The parent is named, as the child may look for it too late."""
        return f"{self.fd}:{os.getpid()}:{int(in_turn)}"

    def sign(self, owner: Owner) -> None:
        """Say who writes here."""
        data = msgspec.json.encode(owner)
        self._map[:_HEADER] = data.ljust(_HEADER, b"\0")

    def owner(self) -> Owner | None:
        data = self._map[:_HEADER].rstrip(b"\0")
        try:
            return msgspec.json.decode(data, type=Owner) if data else None
        except msgspec.MsgspecError:  # it died while it signed: it had no time to claim
            return None

    def start(self, number: int, *, apart: bool = False) -> None:
        """Note that a lease is started, in this process or `apart` from it. May be called from any thread."""
        self._cell_of[number] = cell = self._free.pop()
        self._cells[cell] = -number if apart else number

    def end(self, number: int) -> None:
        """Nobody is to be charged for this lease any more. It may never have started, or have ended before."""
        cell = self._cell_of.pop(number, None)
        if cell is not None:
            self._cells[cell] = 0
            self._free.append(cell)

    def started(self, *, apart: bool) -> list[int]:
        """The leases that were started and are not settled, with those in children or without."""
        return [abs(number) for number in self._cells if number > 0 or (apart and number)]

    def clear(self) -> None:
        self._map[:] = bytes(len(self._map))

    def close(self) -> None:
        self._cells.release()
        self._map.close()
        os.close(self.fd)
