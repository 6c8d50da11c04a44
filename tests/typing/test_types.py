"""Both type checkers accept the right lines of `usage.py` and reject the wrong ones."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CHECKERS = {
    # Strict, so that an ignore whose error has gone is an error itself.
    "mypy": ["-m", "mypy", "--strict", "--cache-dir=.mypy_cache/usage", "tests/typing/usage.py"],
    "pyright": ["-m", "pyright", "--project", "tests/typing"],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_sees_in_users_code_what_it_should(checker: str) -> None:
    if find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: script/setup check")
    command = [sys.executable, *CHECKERS[checker]]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    about_usage = [line for line in result.stdout.splitlines() if "usage.py:" in line]
    assert not about_usage, "\n".join(about_usage)
    assert "usage.py" not in result.stderr
    assert result.returncode in (0, 1), result.stdout + result.stderr  # 1: the library has errors of its own
