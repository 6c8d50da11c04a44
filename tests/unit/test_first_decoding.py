"""msgspec crashes the process if threads decode a class at once that it has not decoded before."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
import msgspec
from treadle.codec import decode_as
from treadle.json_types import convert

sys.setswitchinterval(1e-6)
for _ in range(500):
    class Inner(msgspec.Struct):
        a: int
        b: str = ""

    class Outer(msgspec.Struct):
        x: list[int]
        y: dict[str, Inner]
        z: Inner | None = None

    def decode():
        barrier.wait()
        HOW

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
VALUE = {"x": [1], "y": {"a": {"a": 1}}}


@pytest.mark.parametrize("how", [f"decode_as({json.dumps(VALUE)!r}, Outer)", f"convert({VALUE}, Outer)"])
def test_threads_may_decode_a_class_at_once(how: str) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM.replace("HOW", how)], capture_output=True, check=False)
    assert (0, b"") == (ran.returncode, ran.stderr)
