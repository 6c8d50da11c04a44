"""What a tracer stores with a job, as the text of its `traceparent`: a W3C traceparent, or JSON if there is more."""

from __future__ import annotations

from collections.abc import Mapping

from treadle import codec

LONGEST = 8 << 10
"""Bytes. Baggage may have as many; without it, the trace is still whole."""


def to_text(carrier: Mapping[str, str]) -> str | None:
    """The carrier as text; None if it is empty."""
    if carrier.keys() <= {"traceparent"}:
        return carrier.get("traceparent")
    text = codec.as_json(dict(carrier))
    if len(text.encode()) > LONGEST:
        return to_text({name: value for name, value in carrier.items() if name != "baggage"})
    return text


def from_text(text: str | None) -> dict[str, str]:
    """The carrier; empty if there is none, or it was broken by hand."""
    if text is None or not text.startswith("{"):
        return {"traceparent": text} if text else {}
    return codec.decode_as(text, dict[str, str]) or {}
