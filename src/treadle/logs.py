"""Log records that cannot forge a line or control a terminal, whichever handlers and formatters an app has. The text of
an error comes from others."""

from __future__ import annotations

import logging

LOGGERS = ("treadle", "treadle.jobs", "treadle.web")
_FORMATTER = logging.Formatter()


def printable(text: str, *, keep: str = "") -> str:
    """The text with escapes instead of characters that are not printable, except those to `keep`."""
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def make_safe(record: logging.LogRecord) -> bool:
    """For a logger's filters: a message is one line, and the lines of a traceback are indented."""
    try:
        message = record.getMessage()
    except Exception:  # an argument cannot be printed: the handler reports that, and an error here would end the caller
        return True
    if not message.isprintable():
        record.msg, record.args = printable(message), None
    trace: str = getattr(record, "traceback", "")  # of a job's failure, redacted
    if record.exc_info and not trace:
        trace = _FORMATTER.formatException(record.exc_info)
    if trace and not record.exc_text:  # formatters use the text if there is one
        record.exc_text = "\n".join(f"  {printable(line)}" for line in trace.rstrip("\n").split("\n"))
    return True


def install() -> None:
    for name in LOGGERS:  # a logger does not inherit the filters of its parent
        logging.getLogger(name).addFilter(make_safe)
