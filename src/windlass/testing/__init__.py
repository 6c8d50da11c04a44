"""Tests of code that enqueues: on the real engine, in a temporary file, with a clock that you move.

An app on PostgreSQL can be tested there too: `temporary(wl, url="postgresql://localhost/shop_test")`.

    from windlass.testing import assert_enqueued, drain, temporary

    with temporary(wl) as clock:                   # your own `wl`, wherever your app made it
        sign_up("ann@example.com")
        assert_enqueued(wl, send_mail, to="ann@example.com")
        drain(wl)                                  # runs what is due, here; raises if a job fails
        clock.advance(3600)                        # an hour later
        drain(wl)

With pytest there are fixtures for it: `windlass_temporary`, `windlass_clock` and `windlass_url`. With unittest, write
`self.clock = self.enterContext(temporary(wl))` in `setUp`.
"""

from windlass.testing.clock import ManualClock
from windlass.testing.drain import adrain, drain
from windlass.testing.enqueued import assert_enqueued, enqueued, refute_enqueued
from windlass.testing.temporary import temporary

__all__ = [
    "ManualClock",
    "adrain",
    "assert_enqueued",
    "drain",
    "enqueued",
    "refute_enqueued",
    "temporary",
]
