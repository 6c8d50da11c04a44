"""Log records that say which job they belong to, as lines of text or of JSON. `treadle worker` uses this, and so may an
app that sets up `logging` itself. Also the records that are kept with their attempt."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from treadle import codec
from treadle.context import Run, current_run
from treadle.logs import printable

FORMAT, TIME = "%(asctime)s %(levelname)-7s %(process)d %(message)s", "%Y-%m-%d %H:%M:%S"
JOB = ("job_id", "job_type", "attempt", "tenant")
_USUAL = {*vars(logging.makeLogRecord({})), *JOB, "message", "asctime", "traceback"}
"""What a record has without the `extra` of the app."""


class JobFilter(logging.Filter):
    """Adds `job_id`, `job_type`, `attempt` and `tenant` to each record; outside of a job, they are None. Add it to a
    handler: a logger's filters do not see what its children log. A context variable says which job it is, so that it
    follows tasks and `asyncio.to_thread`."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "job_id"):
            run = current_run.get()
            vars(record).update(dict.fromkeys(JOB) if run is None else run.claimed.about)
        return True


class LineFormatter(logging.Formatter):
    """Lines for people. What is logged inside a job begins with it, as treadle's own lines do. The text of an error
    comes from others, and must not control the terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        id: str | None = getattr(record, "job_id", None)
        if id is not None and record.name.partition(".")[0] != "treadle":
            record.message = f"job {id} ({getattr(record, 'job_type', '')}): {record.message}"
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n\t")


class JSONFormatter(logging.Formatter):
    """A JSON object per line: time, level, logger, message, process; inside a job the job; the traceback; and what
    the app has passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        about = {name: value for name in JOB if (value := getattr(record, name, None)) is not None}
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **about,
            **{name: value for name, value in vars(record).items() if name not in _USUAL},
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["traceback"] = record.exc_text
        return codec.as_json({name: _json(value) for name, value in line.items()})


def _json(value: Any) -> Any:
    try:
        return codec.plain(value)
    except Exception:  # an app may pass anything as `extra`, and logging must not fail it
        return repr(value)


class LogSettings(NamedTuple):
    """What `treadle worker` and its child processes print."""

    level: int
    least: int
    """What has to reach the root logger: handlers may keep more than is printed."""
    format: Literal["text", "json"] = "text"

    def set_up(self) -> None:
        """Print to stderr. An app that has set up its own logging keeps it, in JSON if that is asked for."""
        global chosen
        chosen = self
        handler = logging.StreamHandler()
        handler.setLevel(self.level)
        handler.setFormatter(LineFormatter(FORMAT, TIME))
        handler.addFilter(JobFilter())
        logging.basicConfig(handlers=[handler], level=min(self.level, self.least))
        if self.format == "json":
            _print_json()
        logging.getLogger("treadle").setLevel(self.level)


def _print_json() -> None:
    """Whatever goes to the terminal, also by a handler of a logger of its own, as Django's while DEBUG is on."""
    named = logging.root.manager.loggerDict.values()
    for logger in (logging.root, *(found for found in named if isinstance(found, logging.Logger))):
        for printing in logger.handlers:
            if type(printing) is logging.StreamHandler:
                printing.setFormatter(JSONFormatter())
                printing.addFilter(JobFilter())


chosen: LogSettings | None = None
"""What this process has set up, for its children."""


# Records that are kept with an attempt


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
