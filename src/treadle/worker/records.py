"""Keeps the records of `logging` with the attempt that they are emitted in."""

from __future__ import annotations

import logging

from treadle.context import Run, current_run


class RecordKeeper(logging.Handler):
    """Which attempt a record belongs to is a context variable, so that it follows tasks and `asyncio.to_thread`."""

    def emit(self, record: logging.LogRecord) -> None:
        if _is_alone(record.name):
            _print_warning(record)
        run = current_run.get()
        if run is None or run.keeps is None or record.levelno < run.keeps or record.name.split(".")[0] == "treadle":
            return
        try:
            run.log(record.levelname, self.format(record))
        except Exception:
            self.handleError(record)


_KEEPER = RecordKeeper()


def keep_records(run: Run, level: int) -> None:
    """Keep records of at least this level that are emitted in this run. Nothing is set up before a type asks for it:
    an app that has no handlers yet may still call `logging.basicConfig`, which does nothing if there is one."""
    run.keeps, root = level, logging.root
    if _KEEPER not in root.handlers:
        root.addHandler(_KEEPER)
    if root.handlers == [_KEEPER] and root.level > level:  # nothing else that the root logger lets through is shown
        root.setLevel(level)


def _is_alone(name: str) -> bool:
    """Whether no other handler gets what is logged under this name."""
    logger: object = logging.root.manager.loggerDict.get(name, logging.root)
    while isinstance(logger, logging.Logger):
        if any(handler is not _KEEPER for handler in logger.handlers):
            return False
        logger = logger.parent
    return True


def _print_warning(record: logging.LogRecord) -> None:
    """As `logging` does where nobody has set it up. We are a handler, and must not change that."""
    if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
        logging.lastResort.handle(record)
