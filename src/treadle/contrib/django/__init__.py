"""treadle in a Django project: jobs in its own database, in its own transactions.

Add "treadle.contrib.django" to INSTALLED_APPS, run `manage.py migrate`, and start `manage.py treadle_worker`. `td` is
the project's Treadle; `Backend` is for `TASKS`. See docs/django.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.contrib.django.app import DjangoTreadle
    from treadle.contrib.django.backend import Backend

    td: DjangoTreadle

__all__ = ["Backend", "td"]


def __getattr__(name: str) -> Any:
    """`td` and `Backend`, made when they are first used: Django imports this package before its apps are ready."""
    if name == "td":
        from treadle.contrib.django.app import project_app

        return project_app()
    if name == "Backend":
        from treadle.contrib.django.backend import Backend

        return Backend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
