"""An app whose import takes as long as the test wants."""

from __future__ import annotations

import time

from tests.process.handlers import is_open, td
from tests.process.journal import note

note("importing")
while not is_open("imported"):
    time.sleep(0.01)

__all__ = ["td"]
