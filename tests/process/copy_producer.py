"""A program that enqueues until it is told to stop, in whichever of two databases has the jobs now."""

from __future__ import annotations

import random
import sys
import time

from tests.process.handlers import is_open, storm_async, storm_thread, td
from tests.process.journal import note
from treadle.errors import StoreBusy, StoreUnusable
from treadle.stores import open_store

here, there = sys.argv[1:]
td._use(open_store(here))
number = 0
while not is_open("enough"):
    job = (storm_async if number % 2 else storm_thread).using(dedupe=f"{here}-{random.random()}")
    request = job.using(delay=random.choice((0, 0, 0, 0.2))).request()
    try:
        td.enqueue_many([request])
    except StoreBusy:
        continue
    except StoreUnusable:  # moved, or the other one is not complete yet: nothing was stored
        here, there = there, here
        td._use(open_store(here))
        time.sleep(0.02)
        continue
    note("acked", request.id)
    number += 1
