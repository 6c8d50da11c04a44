"""URLs of SQLite: which file they name, and on which file systems it can be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treadle.errors import BadURL, StoreUnusable
from treadle.settings import database_url
from treadle.stores import open_store
from treadle.stores.sqlite.url import NETWORK_FILE_SYSTEMS, check, file_system, path_of


def test_three_slashes_are_relative_and_four_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert tmp_path / "jobs.db" == path_of("sqlite:///jobs.db")
    assert tmp_path / "data" / "jobs.db" == path_of("sqlite:///data/jobs.db")
    assert Path("/var/lib/app/jobs.db") == path_of("sqlite:////var/lib/app/jobs.db")


@pytest.mark.parametrize("path", ["jobs.db", "data/jobs.db", "/var/lib/app/jobs.db"])
def test_a_path_is_told_how_to_be_a_url(path):
    with pytest.raises(BadURL) as caught:
        database_url(path)
    assert path_of(str(caught.value).rpartition(" ")[2]) == Path(path).absolute()


def test_a_relative_path_does_not_change_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = path_of("sqlite:///jobs.db")

    monkeypatch.chdir("/")

    assert (tmp_path / "jobs.db", True) == (path, path.is_absolute())


def test_spaces_and_dots_are_part_of_a_name():
    assert Path("/a b/c.d/jobs.v2.db") == path_of("sqlite:////a b/./c.d/jobs.v2.db")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:////",
        "sqlite:///folder/",
        "sqlite://jobs.db",
        "sqlite://host/jobs.db",
        "sqlite:jobs.db",
        "jobs.db",
        "/var/lib/app/jobs.db",
        "",
        "postgresql:///jobs",
        "file:///jobs.db",
        "sqlite:///jobs\0.db",
    ],
)
def test_a_url_that_names_no_file_is_refused_and_shown(url):
    """A plain path would be relative to the working directory of each process."""
    with pytest.raises(BadURL) as error:
        path_of(url)

    assert repr(url) in str(error.value)
    assert "sqlite:///jobs.db for a file here, sqlite:////var/lib/app/jobs.db for an absolute path" in str(error.value)


def test_a_password_of_any_length_is_not_shown():
    with pytest.raises(BadURL, match=r"mysql://joe:•••@host/db") as error:
        path_of(f"mysql://joe:{'secret' * 50}@host/db")

    assert "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:///jobs.db?mode=ro", "sqlite:///jobs.db#x"])
def test_memory_and_options_are_refused(url):
    with pytest.raises(BadURL, match="name a file, without options"):
        path_of(url)


def mountinfo(tmp_path, *mounts):
    """A file as /proc/self/mountinfo: (mount point, type) each."""
    lines = [f"{i} 1 0:{i} / {point} rw,relatime shared:1 - {kind} source rw" for i, (point, kind) in enumerate(mounts)]
    file = tmp_path / "mountinfo"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_the_innermost_mount_counts(tmp_path):
    mounts = mountinfo(tmp_path, ("/", "ext4"), ("/data", "nfs4"), ("/data/local", "xfs"), ("/data2", "tmpfs"))

    kinds = [
        file_system(Path(path), mounts) for path in ("/jobs.db", "/data/jobs.db", "/data/local/x/jobs.db", "/data2/j")
    ]

    assert ["ext4", "nfs4", "xfs", "tmpfs"] == kinds


def test_the_latest_of_two_mounts_on_one_point_counts(tmp_path):
    mounts = mountinfo(tmp_path, ("/", "rootfs"), ("/", "ext4"))

    assert "ext4" == file_system(Path("/jobs.db"), mounts)


def test_a_mount_point_with_a_space_is_found(tmp_path):
    mounts = mountinfo(tmp_path, ("/", "ext4"), ("/my\\040share", "cifs"))

    assert "cifs" == file_system(Path("/my share/jobs.db"), mounts)


def test_a_link_into_a_network_file_system_is_resolved(tmp_path):
    share = tmp_path / "share"
    share.mkdir()
    (tmp_path / "link").symlink_to(share)
    mounts = mountinfo(tmp_path, ("/", "ext4"), (os.path.realpath(share), "nfs"))

    assert "nfs" == file_system(tmp_path / "link" / "jobs.db", mounts)


def test_if_the_file_system_is_unknown_the_file_is_accepted(tmp_path):
    assert None is file_system(tmp_path / "jobs.db", str(tmp_path / "missing"))
    check(tmp_path / "jobs.db", str(tmp_path / "missing"))


@pytest.mark.parametrize("kind", sorted(NETWORK_FILE_SYSTEMS))
def test_a_network_file_system_is_refused_with_the_fix(tmp_path, kind):
    mounts = mountinfo(tmp_path, ("/", kind))

    with pytest.raises(StoreUnusable) as error:
        check(tmp_path / "jobs.db", mounts)

    text = str(error.value)
    assert text.startswith(f"{tmp_path}/jobs.db: it is on a network file system ({kind}), where SQLite loses data")
    assert "local disk" in text


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "apfs", "zfs"])
def test_a_local_file_system_is_fine(tmp_path, kind):
    check(tmp_path / "jobs.db", mountinfo(tmp_path, ("/", kind)))


def test_lines_of_an_unknown_format_are_skipped(tmp_path):
    file = tmp_path / "mountinfo"
    file.write_text("\ngarbage\n1 1 0:1 / / rw - ext4 source rw\n")

    assert "ext4" == file_system(Path("/jobs.db"), str(file))


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("sqlite+aiosqlite:///jobs.db", "sqlite:///jobs.db"),
        ("postgresql+psycopg://ann@host/db", "postgresql://ann@host/db"),
        ("postgres+asyncpg://host/db", "postgres://host/db"),
        ("postgresql+asyncpg://host/db?ssl=require&port=5433", "postgresql://host/db?sslmode=require&port=5433"),
        ("postgresql+asyncpg:///db?prepared_statement_cache_size=0&command_timeout=5", "postgresql:///db"),
        ("libsql+http://127.0.0.1:8080", "libsql+http://127.0.0.1:8080"),
    ],
)
def test_a_driver_in_the_url_as_sqlalchemy_writes_it_is_ignored(given, plain):
    assert plain == database_url(given)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (
            "postgresql+pyscopg:///db",
            "its driver 'pyscopg' is not one of psycopg, .*asyncpg.*needs none: postgresql://",
        ),
        ("sqlite+asyncpg:///jobs.db", "its driver 'asyncpg' is not one of pysqlite, aiosqlite"),
        ("postgresql+psycopg://ann:***@host/db", r"pass engine.url.render_as_string\(False\)$"),
        ("sqlite:/shop.db", "write it as a URL: sqlite:////shop.db$"),
        ("sqlite:shop.db", "write it as a URL: sqlite:///shop.db$"),
        ("localhost:5432/shop", "write it as a URL: postgresql://localhost:5432/shop$"),
        ("joe@db.example.com/shop", "write it as a URL: postgresql://joe@db.example.com/shop$"),
        ("C:/srv/shop.db", "write it as a URL: sqlite:///C:/srv/shop.db$"),
    ],
)
def test_a_url_that_looks_like_one_of_sqlalchemy_is_refused_with_the_fix(url, problem):
    with pytest.raises(BadURL, match=problem):
        database_url(url)


def test_a_store_opens_by_the_url_of_sqlalchemy(tmp_path):
    assert f"{tmp_path}/jobs.db" == open_store(f"sqlite+aiosqlite:///{tmp_path}/jobs.db").where
