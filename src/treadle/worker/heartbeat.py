"""The heartbeat: says that this worker lives, and notices who does not."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from treadle.errors import TreadleError, WorkerLost
from treadle.worker.log import log

if TYPE_CHECKING:
    from treadle.stores.base import Beat, Store

STILL = 3
"""Beats of ours during which another's count must stand still before it is dead."""
AGAIN = 0.5
"""Seconds after which a beat that failed is tried again. Others may have beaten meanwhile, and would count on."""


class Heartbeat:
    """A thread of its own, so that a handler that blocks the event loop does not stop the heart.

    No clocks are compared: a worker is dead if its count stood still during three successful beats of ours. After an
    outage or a suspend everybody's first beat comes late, and nobody's is counted as more than one.
    """

    def __init__(self, store: Store, every: float, heard: Callable[[Beat], None], lost: Callable[[str], None]) -> None:
        self._store = store
        self._every = every
        self._heard = heard
        self._lost = lost
        self._stop = threading.Event()
        self._seen: dict[str, tuple[int, int]] = {}
        self.worker = ""
        self._thread = threading.Thread(target=self._keep, name="treadle-keeper", daemon=True)

    def start(self, worker: str) -> None:
        self.worker = worker
        self._thread.start()

    def fall_silent(self) -> None:
        """Beat no more, without waiting for a beat that is under way."""
        self._stop.set()

    def stop(self) -> None:
        self.fall_silent()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _keep(self) -> None:
        pause = self._every
        while not self._stop.wait(pause * random.uniform(0.9, 1.1)):
            pause = self._every
            try:
                self.beat()
            except WorkerLost as error:
                log.warning("%s", error)
                self._seen.clear()
                self._lost(error.worker)
            except TreadleError as error:
                log.warning("no heartbeat: %s", error)
                pause = min(AGAIN, self._every)
            except Exception:
                log.exception("no heartbeat")

    def beat(self) -> None:
        """Count up, bury the dead, and pass on what was heard."""
        beat = self._store.beat(self.worker)
        for worker in self._stood_still(beat):
            held = self._store.declare_dead(worker, "its worker stopped beating", beats=beat.workers[worker])
            log.warning("worker %s is dead: its count stood still; %d jobs returned", worker, held)
        self._heard(beat)

    def _stood_still(self, beat: Beat) -> Collection[str]:
        seen: dict[str, tuple[int, int]] = {}
        for worker, count in beat.workers.items():
            before, still = self._seen.get(worker, (-1, 0))
            seen[worker] = (count, still + 1 if count == before else 0)
        self._seen = seen
        return [worker for worker, (_, still) in seen.items() if still >= STILL and worker != self.worker]
