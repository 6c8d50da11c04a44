"""The SQLite file: where it can be, how callers wait for it, and what a fork does."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conformance.forking import fork_and, wait
from tests.conformance.helpers import enlist, everything, put, put_and_take, put_many
from treadle.errors import BadOption, StoreBusy, StoreUnusable, TreadleError, WorkerLost
from treadle.job import Status
from treadle.outcome import COMPLETED
from treadle.stores.sqlite import checkpoint, connection
from treadle.stores.sqlite.store import SQLiteStore

pytestmark = pytest.mark.only("sqlite")


def url(path):
    return f"sqlite:///{path}"


# Settings that the guarantees depend on


def connections(store):
    """One connection of each kind that the store uses."""
    reader = store.database.read("read", lambda tx: tx.connection)
    with store.database.writing() as tx:
        yield from (reader, tx.connection, store.database.connect())


def test_every_connection_syncs_each_commit_to_the_disk(store):
    """2 is FULL: a commit that returned survives a power cut."""
    assert [2] * 3 == [c.execute("PRAGMA synchronous").fetchone()[0] for c in connections(store)]
    assert ("FULL", "wal") == (store.status()["synchronous"], store.status()["journal_mode"])


def test_less_durability_is_an_explicit_choice(open_store):
    store = open_store(synchronous="NORMAL")

    assert [1] * 3 == [c.execute("PRAGMA synchronous").fetchone()[0] for c in connections(store)]


@pytest.mark.parametrize("value", ["OFF", "", "EXTRA", None])
def test_no_other_durability_can_be_chosen(folder, value):
    with pytest.raises(BadOption, match="FULL survives a power cut"):
        SQLiteStore(url(folder / "jobs.db"), synchronous=value)


def test_no_connection_checkpoints_by_itself(store):
    assert [0] * 3 == [c.execute("PRAGMA wal_autocheckpoint").fetchone()[0] for c in connections(store)]


def test_a_reader_cannot_write(store):
    with pytest.raises(StoreUnusable, match="readonly"):
        store.database.read("read", lambda tx: tx.execute("DELETE FROM treadle_jobs"))


# Files that cannot be a store


def test_the_error_for_a_missing_folder_names_it_and_the_fix(folder):
    path = folder / "missing" / "jobs.db"

    text = f"{path}: its folder does not exist; create it first: mkdir -p {path.parent}"
    with pytest.raises(StoreUnusable, match=text):
        put(SQLiteStore(url(path)))

    assert not path.parent.exists()


def test_a_folder_cannot_be_a_store(folder):
    with pytest.raises(StoreUnusable, match=f"{folder}: it is a folder; name a file in it"):
        put(SQLiteStore(url(folder)))


def test_a_file_that_is_not_a_database_is_left_as_it_was(folder):
    path = folder / "notes.txt"
    path.write_text("dear diary, " * 100)

    with pytest.raises(StoreUnusable, match=f"{path}.*is not a database.*check that it is a SQLite file"):
        put(SQLiteStore(url(path)))

    assert "dear diary, " * 100 == path.read_text()


def in_a_child(work):
    """Run `work` in a forked child that is not root. Return its result or error as text."""
    reader, writer = os.pipe()
    if pid := os.fork():
        os.close(writer)
        with open(reader) as pipe:
            answer = pipe.read()
        os.waitpid(pid, 0)
        return answer
    try:
        if os.getuid() == 0:
            os.setuid(65534)
        answer = str(work())
    except TreadleError as error:
        answer = f"{type(error).__name__}: {error}"
    except BaseException:
        answer = traceback.format_exc()
    os.write(writer, answer.encode())
    os._exit(0)


@pytest.fixture
def public():
    """A folder that a child can reach when it is not root. The folders of pytest are private."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_the_error_for_a_read_only_folder_names_it_and_the_fix(public):
    os.chmod(public, 0o555)

    answer = in_a_child(lambda: put(SQLiteStore(url(public / "jobs.db"))))

    assert answer.startswith(f"StoreUnusable: {public}/jobs.db: cannot be opened")
    assert "the file and its folder must be writable" in answer


def test_the_error_for_a_read_only_file_names_it_and_the_fix(public):
    store = SQLiteStore(url(public / "jobs.db"))
    put(store)
    store.close()
    os.chmod(public / "jobs.db", 0o444)

    answer = in_a_child(lambda: put(SQLiteStore(url(public / "jobs.db"))))

    assert answer.startswith(f"StoreUnusable: {public}/jobs.db")
    assert "the file and its folder must be writable" in answer


def test_a_store_that_could_not_be_opened_can_be_opened_later(folder):
    store = SQLiteStore(url(folder / "later" / "jobs.db"))
    with pytest.raises(StoreUnusable):
        store.open()
    (folder / "later").mkdir()

    assert Status.PENDING == put(store).status
    store.close()


def test_two_paths_of_one_file_are_one_store(open_store, folder):
    store = open_store()
    job = put(store)
    (folder / "link").symlink_to(folder)

    other = SQLiteStore(url(folder / "link" / "jobs.db"))

    assert [job] == everything(other)
    other.close()


# Waiting


def test_a_busy_store_raises_after_the_time_limit_and_suggests_the_cause(open_store):
    ours, theirs = open_store(), open_store()
    theirs.open()

    text = r"was busy for 0\.05 s; if you have an open transaction, pass it"
    with ours.database.writing(), pytest.raises(StoreBusy, match=text) as busy, theirs.database.writing(seconds=0.05):
        pass

    assert theirs.where == busy.value.where
    assert Status.PENDING == put(theirs).status


def test_threads_that_share_a_store_also_give_up_after_the_time_limit(store):
    store.open()

    with (
        store.database.writing(),
        pytest.raises(StoreBusy, match="pass it as connection=…"),
        store.database.writing(seconds=0.05),
    ):
        pass

    assert Status.PENDING == put(store).status


def test_the_users_own_open_transaction_makes_the_store_busy(store, by_hand):
    store.open()
    by_hand("BEGIN IMMEDIATE")

    with pytest.raises(StoreBusy), store.database.writing(seconds=0.05):
        pass

    by_hand("COMMIT")
    assert Status.PENDING == put(store).status


def test_a_waiting_writer_continues_when_the_other_has_committed(open_store):
    ours, theirs = open_store(), open_store()
    theirs.open()
    waiting = threading.Thread(target=put, args=(theirs,))

    with ours.database.writing():
        waiting.start()
    waiting.join()

    assert 1 == len(everything(ours))


def test_opening_waits_for_a_process_that_is_creating_the_file(folder, open_store):
    """SQLite returns "locked" without waiting while another process switches a new file to WAL."""
    other = sqlite3.connect(folder / "jobs.db", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE users (id)")
    other.execute("BEGIN EXCLUSIVE")
    store, opened = open_store(), []
    waiting = threading.Thread(target=lambda: opened.append(put(store)))
    waiting.start()
    waiting.join(0.05)

    other.execute("COMMIT")
    waiting.join()

    assert [Status.PENDING] == [job.status for job in opened]
    other.close()


# The log


def test_the_log_is_checkpointed_when_it_is_long(store, monkeypatch):
    monkeypatch.setattr(checkpoint, "LONG", 1 << 16)
    monkeypatch.setattr(checkpoint, "LOOK", 0)
    monkeypatch.setattr(checkpoint, "PAUSE", 0)
    store.open()
    created = os.stat(f"{store.path}-wal").st_size  # all tables are in it

    sizes = []
    for _ in range(20):
        put_many(store, 20, payload='{"text":"' + "x" * 1000 + '"}')
        sizes.append(os.stat(f"{store.path}-wal").st_size)

    assert sizes[-1] <= max(created, 1 << 18)
    assert sizes == sorted(sizes)  # it is written over and not cut: an fsync of a file that grows takes twice as long
    assert ("ok", 400) == (store.check(), len(everything(store)))


def test_a_commit_succeeds_even_if_the_checkpoint_fails(store, folder, monkeypatch):
    """The commit is durable anyway. The next one tries the checkpoint again."""
    monkeypatch.setattr(checkpoint, "LONG", 0)
    (folder / "jobs.db-checkpoint").mkdir()

    job = put(store)

    assert job == store.get(job.id)


@pytest.mark.usefixtures("every_commit_checkpoints")
def test_no_thread_of_this_process_competes_with_its_checkpoint(store, monkeypatch):
    """It could take the file's lock again and again, while the log grows and the checkpoint waits."""
    store.open()
    turn, locked = store.database._turn, []
    monkeypatch.setattr(checkpoint.Checkpointer, "_run", lambda self: locked.append(turn.locked()))
    put(store)
    assert locked
    assert all(locked)


@pytest.fixture
def busy_checkpoints(store, by_hand, monkeypatch):
    """Each checkpoint finds that another process has just begun to write. What became of it."""
    store.open()
    found, run = [], checkpoint.Checkpointer._run

    def run_beside_another(checkpointer):
        by_hand("BEGIN IMMEDIATE")
        try:
            found.append(run(checkpointer))
        except Exception as error:
            found.append(error)

    monkeypatch.setattr(checkpoint.Checkpointer, "_run", run_beside_another)
    return found


@pytest.mark.usefixtures("every_commit_checkpoints")
def test_a_checkpoint_waits_for_another_process_in_short_pauses(store, by_hand, busy_checkpoints, monkeypatch):
    """SQLite's own reach 100 ms. The other threads of this process wait meanwhile, and the log grows."""
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 50:
            by_hand("COMMIT")

    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    put(store)

    assert ([None], 50) == (busy_checkpoints, len(pauses))
    assert max(pauses) <= 0.001


@pytest.mark.usefixtures("every_commit_checkpoints")
def test_a_checkpoint_that_finds_no_moment_is_left_to_the_next_commit(store, by_hand, busy_checkpoints, monkeypatch):
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.01)
    put(store)
    assert [StoreBusy] == [type(error) for error in busy_checkpoints]

    by_hand("COMMIT")
    put(store)
    assert 2 == len(busy_checkpoints)
    by_hand("COMMIT")


def test_a_commit_does_not_wait_for_a_checkpoint_of_another_process(store, folder, monkeypatch):
    """Two checkpoints at once could corrupt the database, so there is only one, and the others continue."""
    checkpoints = []
    monkeypatch.setattr(checkpoint, "LONG", 0)
    monkeypatch.setattr(checkpoint, "LOOK", 0)
    monkeypatch.setattr(checkpoint, "PAUSE", 0)
    monkeypatch.setattr(checkpoint.Checkpointer, "_run", lambda self: checkpoints.append(1))
    store.open()
    checkpoints.clear()
    with open(folder / "jobs.db-checkpoint", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        put(store)
    assert [] == checkpoints

    put(store)
    assert [1] == checkpoints


def test_a_log_that_is_watched_does_not_grow(store, folder):
    """A commit that lets it grow takes longer. What is behind the last commit is no commit, after a crash too."""
    put_many(store, 10)
    store.watch()
    put_many(store, 10)
    log = f"{store.path}-wal"
    assert os.stat(log).st_size == checkpoint.USUAL

    (folder / "after").mkdir()
    for path in (str(store.path), log):
        shutil.copy(path, folder / "after")
    crashed = SQLiteStore(url(folder / "after" / "jobs.db"))
    assert ("ok", 20) == (crashed.check(), len(everything(crashed)))
    crashed.close()


def test_a_log_without_a_commit_is_not_long(store):
    put(store)
    store.close()  # which removes the log
    store.watch()

    assert not checkpoint.is_long(f"{store.path}-wal")
    assert ("ok", 1) == (store.check(), len(everything(store)))
    assert put(store)
    assert 2 == len(everything(store))


def test_a_log_to_which_somebody_writes_is_left_alone(open_store, store):
    put(store)
    before = os.stat(f"{store.path}-wal").st_size
    with open_store().database.writing():
        store.watch()

    assert before == os.stat(f"{store.path}-wal").st_size


# Who can lock the log


@pytest.fixture
def every_commit_checkpoints(monkeypatch):
    monkeypatch.setattr(checkpoint, "LONG", 0)
    monkeypatch.setattr(checkpoint, "LOOK", 0)
    monkeypatch.setattr(checkpoint, "PAUSE", 0)


@pytest.fixture
def lock_file(folder):
    return folder / "jobs.db-checkpoint"


def mode_of(path):
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("database", "expected"),
    [(0o600, 0o600), (0o640, 0o600), (0o644, 0o600), (0o660, 0o660), (0o664, 0o660), (0o666, 0o666)],
    ids=oct,
)
@pytest.mark.parametrize("mask", [0o022, 0o077], ids=oct)
@pytest.mark.usefixtures("every_commit_checkpoints")
def test_the_lock_file_is_for_those_who_may_write_the_database(store, lock_file, database, expected, mask):
    store.open()
    lock_file.unlink()
    os.chmod(store.path, database)
    before = os.umask(mask)
    try:
        put(store)
    finally:
        os.umask(before)

    assert expected == mode_of(lock_file)


def test_others_cannot_open_the_lock_file_while_it_is_made(folder, lock_file, monkeypatch):
    """Who has it open keeps it open, whatever mode it gets then."""
    modes, share = [], checkpoint._share
    monkeypatch.setattr(
        checkpoint, "_share", lambda lock, *args: modes.append(mode_of(lock_file)) or share(lock, *args)
    )
    database, before = folder / "jobs.db", os.umask(0)
    try:
        database.touch(0o600)
        os.close(checkpoint.open_lock(lock_file, database))
    finally:
        os.umask(before)

    assert [0o600] == modes


@pytest.mark.usefixtures("every_commit_checkpoints")
def test_a_lock_file_that_others_could_open_is_closed_to_them(store, lock_file):
    store.open()
    os.chmod(store.path, 0o600)
    os.chmod(lock_file, 0o644)

    put(store)

    assert 0o600 == mode_of(lock_file)


@pytest.mark.usefixtures("every_commit_checkpoints")
@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_is_not_followed(store, lock_file, folder, caplog, exists):
    store.open()
    lock_file.unlink()
    other = folder / "other"
    if exists:
        other.touch()
        other.chmod(0o604)
    lock_file.symlink_to(other)

    jobs = put_many(store, 1) + put_many(store, 1)

    assert 2 == len(jobs)
    assert other.exists() == exists
    assert not exists or mode_of(other) == 0o604
    [warning] = [record.message for record in caplog.records if "lets the log grow" in record.message]
    assert str(lock_file) in warning


@pytest.mark.usefixtures("every_commit_checkpoints")
def test_a_file_with_a_second_name_keeps_its_mode(store, lock_file, folder):
    store.open()
    other = folder / "other"
    lock_file.rename(other)
    os.link(other, lock_file)
    other.chmod(0o640)

    put(store)

    assert 0o640 == mode_of(other)


ADA, BOB, EVE = 40_001, 40_002, 40_003
FRIENDS = 50_000


def as_user(user, groups, work):
    """Exit code of a child that calls `work` as this user."""

    def child():
        os.setgroups(groups)
        os.setgid(user)
        os.setuid(user)
        work()

    return wait(fork_and(child))


def hold_forever(lock_file):
    """What somebody who wants the log to grow does."""
    for how in (os.O_RDONLY, os.O_RDWR):
        with pytest.raises(PermissionError):
            os.open(lock_file, how)


@pytest.fixture
def shared():
    """A folder with a database of Ada's, which she shares with her friends, and everybody can see."""
    with tempfile.TemporaryDirectory() as name:
        folder, database = Path(name), Path(name) / "jobs.db"
        database.touch()
        for path, mode in ((folder, 0o2775), (database, 0o660)):
            os.chown(path, ADA, FRIENDS)
            path.chmod(mode)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")
@pytest.mark.usefixtures("every_commit_checkpoints")
def test_users_who_share_a_database_by_their_group_checkpoint_it_and_others_cannot_lock_it(shared, monkeypatch):
    lock_file, checkpoints, run = shared / "jobs.db-checkpoint", [], checkpoint.Checkpointer._run
    monkeypatch.setattr(checkpoint.Checkpointer, "_run", lambda self: checkpoints.append(run(self)))

    def write():
        store = SQLiteStore(url(shared / "jobs.db"), synchronous="NORMAL")
        put(store)
        store.close()
        assert checkpoints

    assert 0 == as_user(ADA, [FRIENDS], write)
    assert (ADA, FRIENDS, 0o660) == (*_owners(lock_file), mode_of(lock_file))
    assert 0 == as_user(BOB, [FRIENDS], write)
    assert 0 == as_user(EVE, [], lambda: hold_forever(lock_file))
    lock_file.unlink()
    assert 0 == wait(fork_and(write))
    assert (ADA, FRIENDS) == _owners(lock_file), "what root makes is the owner's"


def _owners(path):
    return path.stat().st_uid, path.stat().st_gid


# Fork


def test_a_fork_waits_for_a_thread_that_writes(store):
    """In the child, that thread would never end its transaction."""
    inside = threading.Event()

    def hold():
        with store.database.writing() as tx:
            inside.set()
            tx.execute("UPDATE treadle_meta SET value = value")

    store.open()
    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()

    assert 0 == wait(fork_and(lambda: put(store)))
    holder.join()
    assert 1 == len(everything(store))


def test_a_child_forked_inside_a_transaction_cannot_use_the_store(store):
    """It has inherited a connection that it must not use or close."""
    claimed = put_and_take(store)

    def work():
        with pytest.raises(StoreUnusable, match="forked while its parent had a transaction open"):
            put(store)
        with pytest.raises(StoreUnusable, match="or spawn"):
            store.get(claimed.id)

    with store.transaction(claimed, lambda: COMPLETED):
        child = fork_and(work)

    assert 0 == wait(child)
    assert Status.COMPLETED == store.get(claimed.id).status
    assert 0 == wait(fork_and(lambda: put(store)))


def test_a_statement_whose_rows_were_not_all_read_does_not_block_writers(open_store):
    """An exception keeps its frames alive, and with them an open cursor, as long as the caller keeps the exception."""
    ours, theirs = open_store(), open_store()
    enlist(ours), enlist(ours, "w2"), enlist(ours, "w3")
    with ours.database.writing() as tx:
        half_read = tx.execute("SELECT id FROM treadle_workers")
        half_read.fetchone()
    put(theirs)

    put(ours)

    assert 2 == len(everything(theirs))
    del half_read


def test_a_beat_of_a_dead_worker_leaves_no_statement_open(open_store):
    ours, theirs = open_store(), open_store()
    enlist(ours, "w2"), enlist(ours, "w3")
    with pytest.raises(WorkerLost) as kept:
        ours.beat("w1")
    writer = ours.database._writer
    put(theirs)

    put(ours)

    assert kept.value.worker == "w1"
    assert ours.database._writer is writer


KILLED_WHILE_WRITING = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("CREATE TABLE theirs (x)")
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
for _ in range(500):
    connection.execute("INSERT INTO theirs VALUES (?)", ("x" * 1000,))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_whose_creator_was_killed_can_be_opened_for_reading(tmp_path):
    """Before the file is in WAL mode, the next process that opens it undoes a partial write. So a reader writes too."""
    path = tmp_path / "jobs.db"
    subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(path)], check=False)
    assert (tmp_path / "jobs.db-journal").exists()

    assert SQLiteStore(f"sqlite:///{path}").schema() == 0
