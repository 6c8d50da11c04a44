"""Settings of a small Django project on SQLite, or on the PostgreSQL that $SHOP_DATABASE names."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

BASE = Path(os.environ.get("SHOP_FOLDER", "."))
SECRET_KEY = "for tests only"
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.contrib.django_project.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "treadle.contrib.django",
    "tests.contrib.django_project.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
if url := os.environ.get("SHOP_DATABASE"):
    parts = urlsplit(url)
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.lstrip("/"),
            "HOST": parts.hostname,
            "PORT": parts.port,
            "USER": parts.username,
            "CONN_MAX_AGE": int(os.environ.get("SHOP_CONN_MAX_AGE", "0")),
            "CONN_HEALTH_CHECKS": True,
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": BASE / "db.sqlite3",
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA wal_autocheckpoint = 0"},
        }
    }
if find_spec("django.tasks") or find_spec("django_tasks"):
    TASKS = {
        "default": {
            "BACKEND": "treadle.contrib.django.Backend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"max_attempts": 3},
        }
    }
