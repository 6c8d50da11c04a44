"""Tests of code that enqueues: on the real engine, in a temporary file, with a clock that you move.

You can test an app on PostgreSQL too: `temporary(td, url="postgresql://localhost/shop_test")`.

    from treadle.testing import assert_enqueued, drain, temporary

    with temporary(td) as clock:                   # your own `td`, wherever your app made it
        sign_up("ann@example.com")
        assert_enqueued(td, send_mail, to="ann@example.com")
        drain(td)                                  # runs what is due in this process; raises if a job fails
        clock.advance(3600)                        # an hour later
        drain(td)

With pytest, use the fixtures `treadle_temporary`, `treadle_clock` and `treadle_url`. With unittest, write
`self.clock = self.enterContext(temporary(td))` in `setUp`.
"""

from treadle.testing.drain import adrain, drain
from treadle.testing.enqueued import assert_enqueued, enqueued, refute_enqueued
from treadle.testing.temporary import ManualClock, temporary

__all__ = ["ManualClock", "adrain", "assert_enqueued", "drain", "enqueued", "refute_enqueued", "temporary"]
