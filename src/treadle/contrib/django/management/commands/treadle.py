"""`manage.py treadle …`: every command of treadle, with the database and the jobs of this project."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, handle_default_options

from treadle.contrib.django.app import project_app
from treadle.program import program


class Command(BaseCommand):
    help = "Run a command of treadle on the database of this project: manage.py treadle jobs ls"
    before: tuple[str, ...] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        parser = argparse.ArgumentParser(add_help=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        options, rest = parser.parse_known_args(argv[2:])
        handle_default_options(options)
        try:
            self.handle(*rest)
        except CommandError as error:
            self.stderr.write(f"CommandError: {error}")
            sys.exit(error.returncode)

    def handle(self, *args: str, **_: Any) -> None:
        from treadle.cli import main

        try:
            app = project_app()
            url = app.store.url
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=2) from error
        here = sys.path[0] or os.getcwd()  # the processes of workers have to find the project, too
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        os.environ["TREADLE_URL"] = url
        os.environ["TREADLE_APP"] = program().app
        sys.argv = ["treadle", *self.before, *args]
        main()
