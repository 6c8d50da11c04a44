"""treadle in a Django project: on SQLite with the Django of this Python, else with Django 6."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import django
import psycopg
import pytest

from tests import stores
from tests.eventually import eventually
from tests.servers.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
MANAGE = "tests.contrib.django_project.manage"
PREPARE = """
from django.db import transaction
from tests.contrib.django_project.shop.models import Order
from tests.contrib.django_project.shop.tasks import count
from treadle.contrib.django import td
with transaction.atomic():
    Order.objects.bulk_create([Order(note=f"o-{n}") for n in range(1000)])
    td.enqueue_many([count.request(f"o-{n}") for n in range(1000)])
"""
UNSETTLED = """
SELECT id FROM treadle_leases WHERE lease <= {} OR attempt > 1 UNION ALL SELECT id FROM treadle_ready WHERE attempts > 0
"""
"""Jobs that ran when the server stopped, until they have run again."""
JOIN = """
from django.db import transaction
from tests.contrib.django_project.shop.tasks import label
from treadle.contrib.django import td
for n in (1, 2):
    with transaction.atomic():
        td.signal(f"go:{n}")
        td.schedules.put(f"s-{n}", label, every=3600, payload={"order": n})
        with td.batch(f"b-{n}") as batch:
            batch.add(label.request(n))
        job = label.enqueue(n)
        td.cancel(job.id)
        print(td.get(job.id).status, td.why(job.id).status, len(td.jobs()))
        transaction.set_rollback(n == 1)
print([one.name for one in td.schedules.list()], [one.name for one in td.batches.list()], len(td.jobs()))
print(td.get_signal("go:1"), td.get_signal("go:2").name)
"""
DASHBOARD = """
from django.contrib.auth.models import User
from django.test import Client
from treadle.contrib.django import td
client = Client(headers={"sec-fetch-site": "same-origin"})
client.force_login(User.objects.create_superuser("ann"))
page = client.get("/jobs/")
[job] = td.jobs(status="pending")
done = client.post(f"/jobs/api/jobs/{job.id}/cancel")
events = client.get("/jobs/api/events")
print(page.status_code, b'"/jobs/static/' in page.content, done.status_code, td.get(job.id).status, events.status_code)
"""

CALLED = """
from django.test import Client
from treadle.contrib.django import td
from treadle.errors import SchemaTooOld, WorkerQuiet
from tests.contrib.django_project.shop.tasks import label
print(td.why(label.enqueue(1).id))
print(td.schedules.put("s", label, every=3600, payload={"order": 1}) and td.schedules.why("s"))
print(td.problems()[0].next)
print(WorkerQuiet("w-1"), SchemaTooOld("jobs", 1, 2))
print(Client().get("/jobs/api/stats").json()["next"])
"""
PARTS = """
from django.db import transaction
from django.db.transaction import TransactionManagementError
from tests.contrib.django_project.shop.models import Order
from tests.contrib.django_project.shop.tasks import label
from treadle.contrib.django import td
from treadle.errors import WaitsForItself
def show():
    schedule = td.schedules.get("s")
    print(td.batches.get("b"), schedule and schedule.pause.reason, len(td.pauses()), len(td.limits.list()))
for rolled_back in (True, False):
    with transaction.atomic():
        Order.objects.create(note=f"o-{rolled_back}")
        with td.batch("b") as batch:
            member = batch.add(label.request(1))
        td.schedules.put("s", label, every=3600, payload={"order": 1})
        td.schedules.pause("s", reason="holiday")
        td.pause(queue="mail", reason="down")
        td.limits.set("type:label", concurrency=2)
        show()
        try:
            td.result(member.id)
        except WaitsForItself as error:
            print(str(error).partition(": ")[2])
        try:
            td.tick()
        except TransactionManagementError as error:
            print(str(error).rpartition("; ")[2])
        transaction.set_rollback(rolled_back)
    show()
"""
CALLS = """
import os
from django.core.management import call_command
from tests.contrib.django_project.shop.tasks import label
from treadle.contrib.django import td
label.enqueue(1)
before = dict(os.environ)
call_command("treadle_worker", "--burst", "--concurrency", 2)
call_command("treadle", "jobs", "ls")
call_command("treadle", "doctor", "--quick")
print([(job.type, str(job.status)) for job in td.jobs()], before == dict(os.environ))
"""
ENQUEUE = """
from tests.contrib.django_project.shop.tasks import label
label.enqueue(1)
"""
OUTBOX = """
from django.core.mail import get_connection, send_mail
from django.core.management import call_command
from django.test.utils import setup_test_environment
from tests.contrib.django_project.shop.tasks import label
from treadle.contrib.django import td
label.enqueue(1)
locmem = get_connection("django.core.mail.backends.locmem.EmailBackend")
send_mail("hello", "", "ann@example.com", ["bob@example.com"], connection=locmem)
call_command("migrate", verbosity=0)
print(td.in_test, len(td.jobs()))
setup_test_environment()
call_command("migrate", verbosity=0)
print(td.in_test, len(td.jobs()))
"""

HOOKED = """
from asgiref.sync import SyncToAsync, sync_to_async
from django.db import connections
from tests.contrib.django_project.shop.models import Order
from tests.contrib.django_project.shop.tasks import label
from tests.eventually import eventually
from treadle.contrib.django import td
used = {}
def look(name):
    Order.objects.count()
    used[name] = connections["default"]
    return []
async def look_async(event):
    await sync_to_async(look)("async")
label.already_done(lambda jobs: look("already_done"))
td.on("job_completed", lambda event: look("plain"))
td.on("job_completed", look_async)
label.enqueue(1)
label.using(delay=3600).enqueue(2)
working = td.worker().start()
eventually(lambda: len(used) == 3 and {one.connection for one in used.values()} == {None})
working.stop()
print("closed after", *sorted(used))
"""
BY_HAND = """
from tests.contrib.django_project.shop.tasks import label
from treadle.contrib.django import td
from treadle.contrib.django.testing import drain
from treadle.testing import temporary
label.already_done(lambda jobs: [])
td.on("job_started", lambda event: None)
td.on("job_completed", lambda event: None)
def do_all():
    label.enqueue(1)
    [lease] = td.claim()
    lease.complete()
    td.reconcile()
    label.enqueue(2)
    assert drain().completed == 1
"""
"""Calls that call hooks, `already_done` and handlers in this thread. Their jobs are in a database of their own: in the
same file of SQLite, they would wait for an open transaction."""
IN_ATOMIC = f"""
{BY_HAND}
from django.db import transaction
from tests.contrib.django_project.shop.models import Order
with temporary(td):
    with transaction.atomic():
        Order.objects.create(note="o-1")
        do_all()
print(Order.objects.count(), "order")
"""
GUARDED = """
from django.db import connection, transaction
from tests.contrib.django_project.shop.models import Order
from treadle.contrib.django.app import old_connections_closed
with transaction.atomic():
    Order.objects.create(note="o-1")
    with old_connections_closed():
        pass
    print(connection.connection is not None)
with old_connections_closed():
    print(Order.objects.count(), "order")
print(connection.connection)
"""
IN_USE = f"""
{BY_HAND}
from django.db import connection
from tests.contrib.django_project.shop.models import Order
Order.objects.bulk_create([Order(note=f"o-{{n}}") for n in range(10)])
with temporary(td), connection.cursor() as cursor:
    cursor.execute("CREATE TEMPORARY TABLE seen (note text)")
    for order in Order.objects.iterator(chunk_size=2):
        do_all()
        with connection.cursor() as other:
            other.execute("INSERT INTO seen VALUES (%s)", [order.note])
    cursor.execute("SELECT count(*) FROM seen")
    print(cursor.fetchone()[0], "seen")
"""
AITERATED = """
import asyncio
from asgiref.sync import SyncToAsync
from django.db import connections
from tests.contrib.django_project.shop.models import Order
from treadle.contrib.django import td
Order.objects.bulk_create([Order(note=f"o-{n}") for n in range(10)])
began, ended = asyncio.Event(), asyncio.Event()
@td.job(max_attempts=1)
async def walk() -> int:
    rows = 0
    async for order in Order.objects.aiterator(chunk_size=2):
        began.set()
        await ended.wait()
        rows += 1
    return rows
@td.job
async def other() -> None:
    await began.wait()
@td.on("job_completed")
async def completed(event) -> None:
    ended.set()
job = walk.enqueue()
other.enqueue()
td.tick()
print(td.get(job.id).result, "rows")
print(SyncToAsync.single_thread_executor.submit(lambda: connections["default"].connection).result())
"""
BROKEN = """
import asyncio
from asgiref.sync import sync_to_async
from django.db import connection
from tests.contrib.django_project.shop.models import Order
from treadle.contrib.django import td
over = asyncio.Event()
def terminate() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
@td.job
async def hold() -> None:
    await over.wait()
@td.job(max_attempts=1)
async def kill() -> None:
    await sync_to_async(terminate)()
@td.job(max_attempts=1)
async def use() -> int:
    return await Order.objects.acount()
@td.on("job_failed")
async def failed(event) -> None:
    if event.type == "kill":
        await use.aenqueue()
    else:
        over.set()
@td.on("job_completed")
async def completed(event) -> None:
    over.set()
hold.enqueue()
kill.enqueue()
td.tick()
print([(job.type, str(job.status)) for job in td.jobs()])
"""


@pytest.fixture(scope="session")
def python6() -> str:
    """A Python with Django 6: this one, or one that script/django6 finds."""
    if django.VERSION >= (6,):
        return sys.executable
    found = subprocess.run([ROOT / "script/django6"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"Django 6 is not tested: {found.stderr.strip()}")
    return found.stdout.strip()


class Project:
    """The project in a folder of its own, on a database of its own."""

    def __init__(self, python: str, folder: Path, database: str = "", **variables: str) -> None:
        self._python = python
        self._folder = folder
        safe = {"DJANGO_ALLOW_ASYNC_UNSAFE": ""}  # tests/user_connections set it for all of this process
        self._env = {**os.environ, **safe, "SHOP_FOLDER": str(folder), "SHOP_DATABASE": database, **variables}
        self._env.pop("DJANGO_SETTINGS_MODULE", None)
        self.url = database or f"sqlite:///{folder}/db.sqlite3"

    def command(self, *words: str) -> list[str]:
        return [self._python, "-m", MANAGE, *words]

    def manage(self, *words: str, code: int = 0) -> str:
        ran = subprocess.run(
            self.command(*words), env=self._env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        log = (self._folder / "worker.log").open("ab")
        return subprocess.Popen(self.command(*words), env=self._env, cwd=ROOT, stdout=log, stderr=log)


def test_the_tests_of_a_project_pass_on_sqlite(tmp_path: Path) -> None:
    """Both kinds of test cases, tasks with results, the admin and the dashboard: see django_project/shop/tests.py."""
    assert "\nOK" in Project(sys.executable, tmp_path).manage("test", "tests.contrib.django_project.shop")


def test_the_tests_of_a_project_pass_on_postgresql(python6: str, tmp_path: Path, postgres_url: str) -> None:
    assert "\nOK" in Project(python6, tmp_path, postgres_url).manage("test", "tests.contrib.django_project.shop")


@pytest.fixture
def project(python6: str, tmp_path: Path) -> Project:
    project = Project(python6, tmp_path)
    assert "The tables of treadle are created" in project.manage("migrate")
    return project


@pytest.fixture(params=["sqlite", "postgresql"])
def each_project(python6: str, tmp_path: Path, request: pytest.FixtureRequest) -> Project:
    """On either database."""
    on_sqlite = request.param == "sqlite"
    project = Project(python6, tmp_path, "" if on_sqlite else request.getfixturevalue("postgres_url"))
    project.manage("migrate")
    return project


def test_a_worker_runs_tasks_on_threads_loops_and_in_children(project: Project) -> None:
    project.manage(
        "shell",
        "-c",
        """
from tests.contrib.django_project.shop.models import Order
from tests.contrib.django_project.shop import tasks
Order.objects.create(note="o-1")
tasks.ship.enqueue("o-1"), tasks.mail.enqueue("o-1"), tasks.apart.enqueue("o-1"), tasks.fail.enqueue(1)
""",
    )
    said = project.manage("treadle_worker", "--burst", "--concurrency", "2")
    jobs = {
        job["type"].rpartition(".")[2]: job
        for job in json.loads(project.manage("treadle", "jobs", "ls", "--json"))["items"]
    }
    assert {"ship": "completed", "mail": "completed", "apart": "completed", "fail": "pending"} == {
        type: job["status"] for type, job in jobs.items()
    }, said
    assert [1, {"shipped": 1}] == [jobs["apart"]["result"][0], jobs["ship"]["result"]]
    assert "200 True 200 cancelled 404" in project.manage("shell", "-c", DASHBOARD)


def test_a_program_calls_the_commands(project: Project) -> None:
    said = project.manage("shell", "-c", CALLS)
    assert "treadle …" in re.sub(r"treadle \d\S*", "treadle …", said)
    assert "\n[('label', 'completed')] True\n" in said
    assert "⚠ SQLite" not in said, said


def test_recommended_commands_are_of_manage_py(project: Project) -> None:
    id = project.manage("treadle", "enqueue", "label", "order:=1").split()[0]
    assert "start one: python manage.py treadle worker\n" in project.manage("treadle", "jobs", "why", id)
    assert "→ python manage.py treadle jobs ls\n" in project.manage("treadle", "jobs", "why", "0" * 26, code=4)
    said = project.manage("shell", "-c", CALLED)
    assert said.count("start one: python manage.py treadle worker\n") == 3, said
    assert "to run it now: python manage.py treadle schedules run s\n" in said
    assert "let it claim again: python manage.py treadle workers resume w-1 " in said
    assert "needs 2; run: python manage.py migrate\n" in said
    assert "(python manage.py treadle tokens create)" in said


def test_a_command_before_migrate_says_to_migrate(tmp_path: Path) -> None:
    """There is no file, or one without the tables of treadle."""
    project = Project(sys.executable, tmp_path)
    missing = project.manage("treadle", "stats", code=3)
    with closing(sqlite3.connect(tmp_path / "db.sqlite3")) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    empty = project.manage("treadle", "stats", code=3)
    assert missing == f"✗ there is no database at {tmp_path}/db.sqlite3\n→ python manage.py migrate\n"
    assert empty == f"✗ {tmp_path}/db.sqlite3 has no treadle tables\n→ python manage.py migrate\n"
    other = project.manage("treadle", "stats", "--db", "sqlite:///nowhere.db", code=3)
    assert "→ python manage.py treadle db upgrade --db sqlite:///" in other


def test_a_role_that_may_not_create_the_tables_is_told_what_its_owner_does(
    python6: str, tmp_path: Path, postgres_url: str
) -> None:
    """By each command of the project, and by an enqueue."""
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute("CREATE ROLE shop_clerk LOGIN; GRANT CREATE, USAGE ON SCHEMA public TO shop_clerk")
        try:
            as_clerk = postgres_url.replace("://postgres@", "://shop_clerk@")
            project = Project(python6, tmp_path, as_clerk)
            migrated = project.manage("migrate", code=1)
            worked = project.manage("treadle_worker", "--burst", code=3)
            enqueued = project.manage("shell", "-c", ENQUEUE, code=1)
        finally:
            owner.execute("DROP OWNED BY shop_clerk CASCADE; DROP ROLE shop_clerk")
    [[database]] = stores.rows(postgres_url, "SELECT current_database()")
    granted = f"have its owner run: GRANT CREATE ON DATABASE {database} TO shop_clerk; then: python manage.py migrate"
    for said in (migrated, worked, enqueued):
        assert granted in said
    assert "\nCommandError: " in migrated
    assert not [said for said in (migrated, worked, enqueued) if "treadle db" in said]


def test_all_that_is_written_inside_atomic_commits_with_it(project: Project) -> None:
    """And what is read there, sees it."""
    assert "cancelled cancelled 2\ncancelled cancelled 2\n['s-2'] ['b-2'] 2\nNone go:2" in project.manage(
        "shell", "-c", JOIN
    )


def test_batches_schedules_pauses_and_limits_are_part_of_atomic(project: Project) -> None:
    """None of these calls waits for the transaction that it is in."""
    inside = "0 of 1 holiday 1 1\nit is not stored until your atomic() block commits, so "
    said = project.manage("shell", "-c", PARTS)
    assert said.count(inside) == 2, said
    assert said.count("call it after the block, or inside: transaction.on_commit(td.tick)\n") == 2, said
    assert "\nNone None 0 0\n" in said
    assert said.endswith("\n0 of 1 holiday 1 1\n")


def test_connections_are_closed_after_hooks_and_reconciliation_too(project: Project) -> None:
    """Without CONN_MAX_AGE. A broken one is closed in the same way, and the next call has a new one."""
    assert "closed after already_done async plain" in project.manage("shell", "-c", HOOKED)


def test_a_transaction_survives_hooks_reconciliation_and_drains_in_its_thread(each_project: Project) -> None:
    """If its connection was closed, its rows would be gone, and nothing would raise."""
    assert "1 order" in each_project.manage("shell", "-c", IN_ATOMIC)


def test_no_connection_inside_atomic_is_closed(each_project: Project) -> None:
    """Not even by a thread of treadle's own. Outside of it, it is."""
    assert "True\n1 order\nNone\n" in each_project.manage("shell", "-c", GUARDED)


def test_a_connection_in_use_survives_hooks_reconciliation_and_drains_in_its_thread(each_project: Project) -> None:
    """An iterator and a temporary table are gone when it is closed."""
    assert "10 seen" in each_project.manage("shell", "-c", IN_USE)


def test_a_connection_in_use_on_the_loop_survives_the_other_jobs_there(each_project: Project) -> None:
    """It is closed when the last one has ended."""
    assert "10 rows\nNone\n" in each_project.manage("shell", "-c", AITERATED)


def test_a_broken_connection_is_closed_also_while_other_jobs_run_on_the_loop(
    python6: str, tmp_path: Path, postgres_url: str
) -> None:
    project = Project(python6, tmp_path, postgres_url)
    project.manage("migrate")
    said = project.manage("shell", "-c", BROKEN)
    assert "[('use', 'completed'), ('kill', 'failed'), ('hold', 'completed')]\n" in said


def test_migrate_deletes_no_jobs(project: Project) -> None:
    """Neither after a mail to the outbox in memory, which tests have, too, nor in the environment of tests."""
    assert "False 1\nTrue 1" in project.manage("shell", "-c", OUTBOX)


def test_settings_are_checked(python6: str, tmp_path: Path) -> None:
    wrong = {
        "TREADLE = {'DATABASE': 'other'}": ["treadle.E001", "DATABASES has no 'other'"],
        "TREADLE = {'RETENTON': None}": ["unknown key 'RETENTON'"],
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}": [
            "treadle.E003",
            "treadle.W001",
        ],
    }
    project = Project(python6, tmp_path)
    for number, (line, problems) in enumerate(wrong.items()):
        (tmp_path / f"wrong{number}.py").write_text(f"from tests.contrib.django_project.settings import *\n{line}\n")
        said = project.manage("check", "--settings", f"wrong{number}", "--pythonpath", str(tmp_path), code=1)
        assert all(problem in said for problem in problems), said


OTHER_APPS = """
from treadle import Treadle
from treadle.contrib.django import td
other, kept = Treadle(), Treadle("sqlite:///kept.db")
"""


def test_a_second_treadle_is_warned_of(python6: str, tmp_path: Path) -> None:
    """If its URL was left out. Its jobs would be in a file that no worker of the project knows."""
    (tmp_path / "sale").mkdir()
    (tmp_path / "sale" / "tasks.py").write_text(OTHER_APPS)
    said = _checked(python6, tmp_path, "INSTALLED_APPS.append('sale')")
    assert f"(treadle.W003) sale.tasks.other = Treadle() keeps its jobs in {ROOT}/treadle.db, and" in said
    assert said.count("treadle.W003") == 1, said


def _checked(python: str, folder: Path, lines: str) -> str:
    """What the check says with these further lines of settings."""
    (folder / "its_settings.py").write_text(f"from tests.contrib.django_project.settings import *\n{lines}\n")
    return Project(python, folder).manage("check", "--settings", "its_settings", "--pythonpath", str(folder))


def test_what_is_wrong_with_tasks_is_warned_of(python6: str, tmp_path: Path) -> None:
    said = _checked(python6, tmp_path, "TASKS['default']['max_attempts'] = 9")
    assert "(treadle.W004) TASKS['default'] has 'max_attempts', which nothing reads." in said
    assert "HINT: Move it into OPTIONS: \"OPTIONS\": {'max_attempts': …}, which may have max_attempts, timeout" in said
    (tmp_path / "sale").mkdir()
    (tmp_path / "sale" / "tasks.py").write_text("from django.tasks import task\n@task\ndef mail(): pass")
    without = "del TASKS; INSTALLED_APPS[-1:] = [{}]; ROOT_URLCONF = 'treadle.contrib.django.urls'"
    said = _checked(python6, tmp_path, without.format("'sale'"))
    assert "(treadle.W005) There is no setting TASKS, so that Django runs sale.tasks.mail at once" in said
    assert "no issues" in _checked(python6, tmp_path, without.format(""))


WRONG = {
    "TREADLE = {'RETENTON': 1}": (
        "treadle.E001",
        "TREADLE has an unknown key 'RETENTON'",
        "it may have DATABASE, URL, RETENTION, REDACT",
    ),
    "TREADLE = {'RETENTION': 1}": (
        "treadle.E001",
        "TREADLE: retention=1",
        "how long ended jobs are kept: a timedelta, or None to keep them forever",
    ),
    "TREADLE = {'URL': 'jobs.db'}": (
        "treadle.E001",
        "TREADLE: 'jobs.db' is not a database that treadle can open",
        "write it as a URL: sqlite:///jobs.db",
    ),
    "TREADLE = {'URL': 'sqlite:///jobs.db', 'DATABASE': 'default'}": (
        "treadle.E001",
        "TREADLE has both URL and DATABASE",
        "leave one of them out",
    ),
    "TREADLE = 'sqlite:///jobs.db'": (
        "treadle.E001",
        "TREADLE='sqlite:///jobs.db' is not a dict",
        "write a dict, which may have DATABASE, URL, RETENTION, REDACT",
    ),
    "TREADLE = {'DATABASE': 'other'}": (
        "treadle.E001",
        "DATABASES has no 'other', where TREADLE keeps its jobs",
        "it has 'default'",
    ),
    "import sys; sys.modules['psycopg'] = None; DATABASES['default']['ENGINE'] = 'django.db.backends.postgresql'": (
        "treadle.E002",
        "the database on PostgreSQL needs psycopg, which is not installed",
        "install it: pip install 'treadle[postgres-binary]'",
    ),
}
"""Lines of the settings, and how they are reported: the id, the problem, the way out."""


@pytest.mark.parametrize(("line", "said"), WRONG.items(), ids=[said[1] for said in WRONG.values()])
def test_wrong_settings_are_errors_of_the_check_and_of_the_commands(
    tmp_path: Path, line: str, said: tuple[str, str, str]
) -> None:
    """There is no traceback, even though the project uses `td` and tasks where Django imports its apps."""
    id, problem, way_out = said
    (tmp_path / "its_settings.py").write_text(f"from tests.contrib.django_project.settings import *\n{line}\n")
    where = ("--settings", "its_settings", "--pythonpath", str(tmp_path))
    project = Project(sys.executable, tmp_path)
    checked = project.manage("check", *where, code=1)
    assert f"ERRORS:\n?: ({id}) {problem}\n\tHINT: {way_out}\n" in checked
    for command in (("treadle_worker", "--burst"), ("treadle", "jobs", "ls")):
        ended = project.manage(*command, *where, code=2)
        assert re.fullmatch(f"CommandError: {re.escape(problem)}[:;] {re.escape(way_out)}\n", ended)


HIDE = """
import sys
from importlib.abc import MetaPathFinder
class Hidden(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "django_tasks":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""
"""As if the package django-tasks was not installed."""
NO_TASKS = {
    "of Django 5.2": (HIDE, "from django_tasks import task", "has .* its own; write: from django.tasks import task")
}
if django.VERSION < (6,):
    NO_TASKS |= {
        "not installed": (
            HIDE,
            "",
            "has no tasks of its own, .* is not installed; install it: pip install django-tasks",
        ),
        "of Django 6": ("", "from django.tasks import task", "has no django.tasks; write: from django_tasks import"),
    }


@pytest.mark.parametrize("case", NO_TASKS)
def test_tasks_that_cannot_be_imported_are_named_with_the_way_out(python6: str, tmp_path: Path, case: str) -> None:
    """In the last line. Django imports every `tasks.py` before a check or a command can say anything."""
    hide, line, way_out = NO_TASKS[case]
    (tmp_path / "sale").mkdir()
    (tmp_path / "sale" / "tasks.py").write_text(line)
    app = "INSTALLED_APPS.insert(0, 'sale')"
    lines = ("from tests.contrib.django_project.settings import *", hide, app)
    (tmp_path / "its_settings.py").write_text("\n".join(lines))
    project = Project(python6 if case == "of Django 5.2" else sys.executable, tmp_path)
    for command in ("check", "treadle_worker"):
        said = project.manage(command, "--settings", "its_settings", "--pythonpath", str(tmp_path), code=1)
        last = said.rstrip().splitlines()[-1]
        assert re.fullmatch(rf"django\.core\.exceptions\.ImproperlyConfigured: Django [\d.]+ {way_out}.*", last), said


@pytest.mark.parametrize(
    ("version", "options", "warned"),
    [
        ((3, 51, 2), {}, True),
        ((3, 51, 2), {"init_command": "PRAGMA foreign_keys = 1; PRAGMA wal_autocheckpoint = 0"}, False),
        ((3, 51, 3), {}, False),
    ],
)
def test_django_is_told_to_leave_checkpoints_to_treadle(
    python6: str, tmp_path: Path, version: tuple[int, ...], options: dict[str, str], warned: bool
) -> None:
    lines = (
        "import sqlite3",
        "from tests.contrib.django_project.settings import *",
        f"sqlite3.dbapi2.sqlite_version_info = {version}",
        f"DATABASES['default']['OPTIONS'] = {options}",
    )
    (tmp_path / "its_settings.py").write_text("\n".join(lines))
    words = ("check", "--settings", "its_settings", "--pythonpath", str(tmp_path))
    said = Project(python6, tmp_path).manage(*words)
    assert warned == ("treadle.W002" in said), said


def test_no_job_is_lost_when_the_server_restarts_twice(
    python6: str, tmp_path: Path, make_postgres: Callable[..., PostgresServer]
) -> None:
    """With connections that Django keeps. Some jobs are in the middle of it, and fail once: twice, and they would be
    failed."""
    server = make_postgres()
    project = Project(python6, tmp_path, server.url(), SHOP_CONN_MAX_AGE="600")
    project.manage("migrate")
    project.manage("shell", "-c", PREPARE)

    def completed() -> int:
        [[number]] = stores.rows(server.url(), "SELECT count(*) FROM treadle_finished WHERE status = 'completed'")
        return int(number)

    worker = project.start("treadle_worker", "--concurrency", "10")
    try:
        for number in (100, 500):
            eventually(lambda: completed() >= number)  # noqa: B023
            server.restart()
            [[newest]] = stores.rows(server.url(), "SELECT coalesce(max(lease), 0) FROM treadle_leases")
            eventually(lambda: [] == stores.rows(server.url(), UNSETTLED.format(newest)))  # noqa: B023
        eventually(lambda: completed() == 1000)
    finally:
        worker.terminate()
        worker.wait(60)
    failures = stores.rows(server.url(), "SELECT count(*) FROM treadle_attempts GROUP BY id")
    assert {(1,)} >= set(failures)
    assert [(1000, 1)] == stores.rows(server.url(), "SELECT count(*), min(shipped) FROM shop_order")
