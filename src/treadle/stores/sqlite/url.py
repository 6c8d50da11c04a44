"""Where a SQLite file may live."""

from __future__ import annotations

import os
from pathlib import Path

from treadle.errors import BadURL, StoreUnusable

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "9p", "ceph", "glusterfs", "lustre", "gpfs", "beegfs"}
    | {"fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.glusterfs", "fuse.cephfs", "fuse.gcsfuse", "ocfs2", "gfs2"}
)
"""SQLite's log needs memory shared by all who use the file, and locks that work: these have neither for sure."""


def path_of(url: str) -> Path:
    """The absolute path in `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite" or not rest.startswith("/") or rest.endswith("/") or "\0" in rest:
        way_out = "write sqlite:///jobs.db for a file here, sqlite:////var/lib/app/jobs.db for an absolute path"
        raise BadURL(url, way_out)
    if ":memory:" in rest or "?" in rest or "#" in rest:
        raise BadURL(url, "name a file, without options: jobs that live in memory are not durable")
    return Path(os.path.abspath(rest[1:]))


def check(path: Path, mounts: str = "/proc/self/mountinfo") -> None:
    """Refuse a folder that is not there, and file systems that lose data."""
    if not path.parent.is_dir():
        raise StoreUnusable(str(path), "its folder does not exist", f"create it first: mkdir -p {path.parent}")
    if path.is_dir():
        raise StoreUnusable(str(path), "it is a folder", "name a file in it")
    kind = file_system(path, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        problem = f"it is on a network file system ({kind}), where SQLite loses data"
        raise StoreUnusable(str(path), problem, "put the file on a local disk")


def file_system(path: Path, mounts: str = "/proc/self/mountinfo") -> str | None:
    """The type of the file system that holds `path`, or None where the system does not say."""
    try:
        lines = Path(mounts).read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    best, kind = "", None
    for line in lines:
        fields, separator, rest = line.partition(" - ")
        if not separator:
            continue
        point = fields.split()[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, rest.split()[0]
    return kind
