"""`path("jobs/", include("treadle.contrib.django.urls"))` mounts the dashboard."""

from __future__ import annotations

from django.urls import re_path

from treadle.errors import MissingExtra

try:
    from treadle.contrib.django.views import dashboard
except ModuleNotFoundError as error:
    raise MissingExtra("the dashboard", str(error.name), "web") from None

urlpatterns = [re_path(r"^(?P<path>.*)$", dashboard, name="treadle")]
