"""What all tests share: settings of hypothesis, and servers. Other fixtures are next to the tests that use them."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail a test, and CI must be reproducible.
settings.register_profile(
    "treadle",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("treadle")

# A process in a shell's background ignores Ctrl-C, and so do its children. The children of tests must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of processes. Without compiled files, each would spend most of its start compiling the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture(autouse=True)
def _level_of_logging() -> Iterator[None]:
    """A test that sets up logging must not change what later ones see in it."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "torture: takes minutes of both cores, and is left to script/torture")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked as torture run only in `script/torture`."""
    if not os.environ.get("TREADLE_TEST_TORTURE"):
        longest = [item for item in items if item.get_closest_marker("torture")]
        config.hook.pytest_deselected(items=longest)
        items[:] = [item for item in items if item not in longest]


# Declared here, so that all tests share one server.
pytest_plugins = ["tests.servers.fixtures"]
