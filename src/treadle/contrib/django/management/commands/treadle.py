"""`manage.py treadle …`: every command of treadle, with the database and the jobs of this project."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, handle_default_options

from treadle.contrib.django.app import project_app
from treadle.contrib.django.store import NO_WORKER
from treadle.program import program


class Words(CommandParser):
    """Leaves all words to treadle, which has options of its own."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        found = super().parse_args([], namespace)
        found.args = list(args or ())
        return found


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

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """For `call_command`, whose words may be options of treadle."""
        base = super().create_parser(prog_name, subcommand, **kwargs)
        return Words(prog=base.prog, description=base.description, parents=[base], add_help=False)

    def execute(self, *args: str, **options: Any) -> None:
        """By `call_command`: the process goes on after it, as it was."""
        out, err = options.get("stdout"), options.get("stderr")
        try:
            with _as_before(), _written_to(out, redirect_stdout), _written_to(err, redirect_stderr):
                self.handle(*args)
        except SystemExit as end:
            if end.code:
                called = " ".join([program().name, *self.before, *args])
                text = f"{called} has ended with exit code {end.code}"
                raise CommandError(text, returncode=int(end.code)) from None

    def handle(self, *args: str, **_: Any) -> None:
        from treadle.cli import main

        try:
            app = project_app()
            url = app.store.url
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=2) from error
        words = [*self.before, *args]
        if app.in_test and words[:1] == ["worker"]:
            raise CommandError(NO_WORKER)
        here = sys.path[0] or os.getcwd()  # the processes of workers have to find the project, too
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        os.environ["TREADLE_URL"] = url
        if app.in_test:
            del os.environ["TREADLE_URL"]  # the jobs are on the connection of the test
        os.environ["TREADLE_APP"] = program().app
        sys.argv = ["treadle", *words]
        main()


@contextmanager
def _written_to(stream: Any, redirect: Callable[[Any], AbstractContextManager[Any]]) -> Generator[None]:
    """Write what the command prints to a stream that takes only text; JSON is printed as bytes."""
    if stream is None:
        yield
        return
    printed = io.TextIOWrapper(buffer := io.BytesIO(), "utf-8", write_through=True)
    try:
        with redirect(printed):
            yield
    finally:
        stream.write(buffer.getvalue().decode())


@contextmanager
def _as_before() -> Generator[None]:
    """Restore what a command changes in its process."""
    environment, words = dict(os.environ), sys.argv
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = words
