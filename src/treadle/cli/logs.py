"""How workers log: readable lines on stderr."""

from __future__ import annotations

import logging

from treadle.cli.output import clean


class Lines(logging.Formatter):
    """What a job says in an error must not steer the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record), one_line=False)


def set_up(verbose: int) -> None:
    """Warnings to stderr, with -v all that happens; an app that set up its own logging keeps it."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = logging.StreamHandler()
    handler.setFormatter(Lines("%(asctime)s %(levelname)-7s %(process)d %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=level)
    logging.getLogger("treadle").setLevel(level)
