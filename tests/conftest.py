"""What all tests share: how hypothesis behaves, and servers. Other fixtures live beside the tests that use them."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A busy machine is no failure, and CI must give the same answer twice.
settings.register_profile(
    "windlass",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("windlass")

# Here and not beside the tests that use it, so that they all share one server.
pytest_plugins = ["tests.servers.fixtures"]
