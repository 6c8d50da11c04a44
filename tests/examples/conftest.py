"""What the tests of the examples share."""

from __future__ import annotations

import pytest

from tests.servers.postgres import free_port


@pytest.fixture
def port() -> int:
    return free_port()
