"""`manage.py treadle_worker`: run the jobs of this project. It takes the options of `treadle worker`."""

from __future__ import annotations

from treadle.contrib.django.management.commands.treadle import Command as TreadleCommand


class Command(TreadleCommand):
    help = "Run the jobs of this project until stopped."
    before = ("worker",)
