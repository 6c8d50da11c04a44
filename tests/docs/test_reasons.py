"""The docs name every reason why a job does not run, and every event of the hooks."""

from __future__ import annotations

from tests.docs.blocks import ROOT
from treadle.hooks import NAMES
from treadle.reasons import ReasonCode


def test_every_code_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "http-api.md").read_text()
    assert [code for code in ReasonCode if f"`{code}`" not in page] == []


def test_every_event_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "hooks.md").read_text()
    assert [name for name in NAMES if f"| `{name}` |" not in page] == []
