"""`treadle bench`: what this machine gives, beside what its disk and its database could give at the most."""

from treadle.cli.bench.command import bench

__all__ = ["bench"]
