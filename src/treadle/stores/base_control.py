"""What every store can do with pauses and limits: a part of the contract in `base.py`."""

# pyright: reportReturnType=false
# A method of a Protocol is its docstring here. (pyright would want a `...` after each.)

from __future__ import annotations

from typing import Protocol

from treadle.limits import FullLimit, LimitChange, LimitState
from treadle.pauses import NewPause, Pause, Target


class Pausing(Protocol):
    """From what nothing is claimed."""

    def pause(self, new: NewPause) -> Pause:
        """Claim nothing of it from the commit on. If it is paused already: who, why and until when are new."""

    def resume(self, target: Target) -> Pause | None:
        """End a pause and return it; None if there was none. Then call `put_back_parked` until that returns 0."""

    def pauses(self) -> list[Pause]:
        """Those that hold now, oldest first."""

    def put_back_parked(self) -> int:
        """Let some of the jobs be claimed that were parked for a pause that is over. Return their number. A chore."""

    def running_of(self, target: Target) -> int:
        """How many of its jobs are leased."""

    def claiming(self) -> frozenset[str]:
        """The transactions that may be claiming right now. Those that began before a pause may not know of it."""

    def set_quiet(self, worker: str, quiet: bool) -> bool:
        """Let a worker claim nothing from the commit on, or let it claim again. False if there is no such worker."""


class Limiting(Protocol):
    """How many jobs run at once, and how many start per time."""

    def limits(self) -> list[LimitState]:
        """All that code declares and that people have changed, by name and key."""

    def full_limits(self) -> list[FullLimit]:
        """Those under which no job can start now: of whole types, and some of the keys for which jobs wait."""

    def change_limit(self, change: LimitChange) -> LimitState:
        """Claims go by it from the commit on, whatever the code says. What runs goes on."""

    def unset_limit(self, name: str, key: str) -> bool:
        """Claims go by the code again, and start jobs of a key that was held back. False if nothing was changed."""

    def open_limits(self, after: str = "") -> tuple[int, str]:
        """Let jobs go that are parked for keys with free places: of some keys, after this one. Return how many keys
        have a place, and where to go on. A chore."""
