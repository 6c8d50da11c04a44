"""The SQL of the verbs that is the same in every database: a module for those who use it, and `parts` for what their
statements have in common. The rest is in the `sql.py` of each database."""

from collections.abc import Callable

from treadle.stores.statements.batches import Batches
from treadle.stores.statements.control import Control
from treadle.stores.statements.manage import Manage
from treadle.stores.statements.reading import Reading
from treadle.stores.statements.schedules import Schedules
from treadle.stores.statements.stats import Stats
from treadle.stores.statements.waiting import Waiting
from treadle.stores.statements.web_records import WebRecords
from treadle.stores.statements.work import Work


class Statements(Work, Manage, Reading, Stats, Control, Schedules, Waiting, Batches, WebRecords):
    """The statements that all databases have, written as PostgreSQL has them. A subclass per database adds its own."""

    def __init__(self, translate: Callable[[str], str] = str) -> None:
        for part in Statements.__mro__:
            for name, sql in vars(part).items():
                if name.isupper():
                    setattr(self, name, translate(sql))

    def translate(self, sql: str) -> str:
        """A statement that is not one of these, as this database has it."""
        return sql
