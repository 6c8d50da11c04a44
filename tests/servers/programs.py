"""Server programs that `script/server` finds or unpacks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.servers.fixtures import cannot

ROOT = Path(__file__).parents[2]


def find_program(name: str) -> str:
    """The path of a server's program. Without one, the test is skipped, or fails where it could be fetched."""
    variable = f"TREADLE_TEST_{name.upper().replace('-', '_')}"
    names = (os.environ.get(variable) or name, f"/usr/sbin/{name}", f"{ROOT}/.venv/{name}/{name}")
    found = next((path for each in names if (path := shutil.which(each))), None)
    if found is None and shutil.which("apt-get"):
        cannot(f"no {name} was found: run script/server {name}, or name one in {variable}")
    return found or pytest.skip(f"no {name} was found, and there is no apt-get to fetch it with")
