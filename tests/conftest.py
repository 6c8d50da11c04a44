"""What all tests share: how hypothesis behaves, and servers. Other fixtures live beside the tests that use them."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# A busy machine is no failure, and CI must give the same answer twice.
settings.register_profile(
    "treadle",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("treadle")

# Who starts in a shell's background ignores Ctrl-C, and its children with it: theirs should hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Here and not beside the tests that use it, so that they all share one server.
pytest_plugins = ["tests.servers.fixtures"]
