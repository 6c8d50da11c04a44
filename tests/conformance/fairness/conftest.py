from __future__ import annotations

from typing import Any

import pytest

from treadle.stores.base import TypePolicy


@pytest.fixture
def fair(store: Any) -> Any:
    """A store in which the tenants of the type `fair` take turns."""
    store.publish([TypePolicy(type="fair", fair="tenant")])
    return store
