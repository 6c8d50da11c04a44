"""The jobs as a model, for the admin: a view of treadle's own tables. It has no migrations, and cannot be saved."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import connections, models

from treadle.contrib.django.conf import given

ALIAS: str = given().get("DATABASE", "default")
_VIEW = '"treadle"."job"' if ALIAS in connections and connections[ALIAS].vendor == "postgresql" else "treadle_job"


class JobManager(models.Manager):
    def get_queryset(self) -> Any:
        return super().get_queryset().using(ALIAS)


class Job(models.Model):
    """One job, as the view `treadle_job` shows it."""

    id = models.CharField(primary_key=True, max_length=36)
    type = models.CharField(max_length=200)
    queue = models.CharField(max_length=200)
    tenant = models.CharField(max_length=200)
    subject = models.CharField(max_length=200)
    status = models.CharField(max_length=20)
    priority = models.IntegerField()
    attempts = models.IntegerField()
    max_attempts = models.IntegerField()
    created_at = models.DateTimeField()
    run_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    completed_at = models.DateTimeField(null=True)
    error = models.TextField(null=True)

    objects: ClassVar[Any] = JobManager()

    class Meta:
        managed = False
        app_label = "treadle"
        db_table = _VIEW
        ordering: ClassVar[list[str]] = ["-id"]

    def __str__(self) -> str:
        return f"{self.type} {self.id}"
