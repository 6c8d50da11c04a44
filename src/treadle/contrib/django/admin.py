"""The jobs in Django's admin, to look at. To change them, use the dashboard."""

# Django has no types, and what pyright infers from its code is wrong here.
# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any

import msgspec
from django.contrib import admin
from django.http import Http404
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html

from treadle import views
from treadle.contrib.django.app import project_app
from treadle.contrib.django.conf import given
from treadle.contrib.django.models import Job
from treadle.ids import is_id


class JobAdmin(admin.ModelAdmin):
    list_display = ("id", "type", "status", "queue", "attempts", "run_at", "completed_at", "error_line")
    list_filter = ("status", "queue", "type")
    search_fields = ("=id", "type", "=subject", "=tenant")
    show_full_result_count = False  # there may be millions
    list_per_page = 50

    def get_object(self, request: Any, object_id: str, from_field: Any = None) -> Any:
        return super().get_object(request, object_id, from_field) if is_id(object_id) else None

    @admin.display(description="error")
    def error_line(self, job: Job) -> str:
        return project_app().redactor.text((job.error or "").partition("\n")[0])

    @admin.display
    def payload(self, job: Job) -> Any:
        return _json(_stored(job).payload)

    @admin.display
    def result(self, job: Job) -> Any:
        return _json(_stored(job).result)

    @admin.display
    def tracebacks(self, job: Job) -> Any:
        app = project_app()
        shown = [views.attempt(one, app.redactor) for one in app.attempts(str(job.pk))]
        return _block("\n".join(one.traceback or one.error or "" for one in shown))

    @admin.display
    def dashboard(self, job: Job) -> Any:
        """Where it can be changed, too."""
        try:
            return format_html('<a href="{0}">{0}</a>', reverse("treadle", args=[f"jobs/{job.id}"]))
        except NoReverseMatch:
            return "-"  # it is not mounted

    def get_fields(self, request: Any, obj: Any = None) -> list[str]:
        own = [field.name for field in Job._meta.fields if field.name != "error"]
        return [*own, "payload", "result", "error_line", "tracebacks", "dashboard"]

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list[str]:
        return self.get_fields(request, obj)

    def has_add_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission


def _stored(job: Job) -> views.JobOut:
    app = project_app()
    found = app.get(str(job.pk))
    if found is None:
        raise Http404  # it was deleted just now
    return views.job(found, app.redactor)


def _json(value: Any) -> Any:
    return _block(msgspec.json.format(msgspec.json.encode(value)).decode())


def _block(text: str) -> Any:
    return format_html("<pre>{}</pre>", text)


if "URL" not in given():  # then it is a database that Django does not know
    admin.site.register(Job, JobAdmin)
