"""`windlass bench`: what this machine gives, beside what its disk and its database could give at the most."""

from windlass.cli.bench.command import bench

__all__ = ["bench"]
