"""Jobs as pages and answers show them: as the command line does, without what looks like a secret."""

from treadle.shown import attempt, failure, job, why

__all__ = ["attempt", "failure", "job", "why"]
