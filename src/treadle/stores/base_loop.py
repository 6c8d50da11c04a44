"""What a store has for the event loop of a worker: a part of the contract in `base.py`."""

# pyright: reportReturnType=false
# A method of a Protocol is its docstring here. (pyright would want a `...` after each.)

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from treadle.stores.rows import Claim

if TYPE_CHECKING:
    from treadle.stores.base import ClaimRequest


class Watch(Protocol):
    """Waits for commits, by this process or by others. Its answers are hints.

    Either one thread calls `wait`; or an event loop calls `heard` whenever `fileno` is readable, and a thread `check`.
    """

    can_rest: bool
    """Whether nothing piles up while nobody reads: then a busy worker, which claims anyway, does not listen."""

    def wait(self, seconds: float) -> bool:
        """Whether there may be a commit since the last call; False after `seconds` without one."""

    def fileno(self) -> int | None:
        """What an event loop can wait for. None: only `wait` hears something now."""

    def heard(self) -> Sequence[float]:
        """Read what has arrived, without waiting. In how many seconds to look for jobs, each time."""

    def check(self) -> None:
        """Find out now and then whether commits are still heard. If not, `fileno` is None after this."""

    def close(self) -> None:
        """End a `wait` in another thread."""


class LoopClaims(Protocol):
    """Claims for a worker that has nothing to run, on its event loop: nothing else waits for it, and no thread has to
    wake up."""

    async def claim(self, worker: str, request: ClaimRequest) -> Claim | None:
        """As `Engine.claim` does it; or None, if nothing has happened: a thread has to claim."""

    def close(self) -> None:
        """Disconnect. A later claim connects again."""
