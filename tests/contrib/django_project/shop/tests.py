"""The tests of the project itself, as its author would write them. tests/contrib/test_django.py runs them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from contextlib import redirect_stdout
from datetime import timedelta
from functools import partial
from unittest.mock import patch

from django.contrib.auth.models import Permission, User
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client, TestCase, TransactionTestCase
from django.utils import timezone

from tests.contrib.django_project.shop import tasks
from tests.contrib.django_project.shop.models import Order
from tests.eventually import eventually
from treadle import Limit
from treadle.api_tokens import hash_of, new_secret
from treadle.contrib.django import Backend, td
from treadle.contrib.django.app import DjangoTreadle
from treadle.contrib.django.backend import task_finished
from treadle.contrib.django.testing import adrain, drain
from treadle.errors import BlocksTheLoop, NotJSON, TreadleError
from treadle.job import Status
from treadle.stores.rows import Token
from treadle.testing import adrain as adrain_elsewhere
from treadle.testing import assert_enqueued, refute_enqueued, temporary
from treadle.testing import drain as drain_elsewhere
from treadle.worker.chores import published_types


class Jobs:
    """What is the same inside the transaction of a TestCase and outside of one."""

    def setUp(self):
        Order.objects.create(note="o-1")

    def test_a_task_runs_and_has_a_result(self):
        result = tasks.ship.enqueue("o-1")
        self.assertEqual(("READY", ["o-1"]), (result.status, result.args))

        report = drain()

        result.refresh()
        self.assertEqual((1, 1), (report.ran, report.completed))
        self.assertEqual(("SUCCESSFUL", {"shipped": 1}), (result.status, result.return_value))
        self.assertEqual(result.return_value, tasks.ship.get_result(result.id).return_value)
        self.assertEqual(result.return_value, td.result(result.id))
        self.assertEqual(1, Order.objects.get(note="o-1").shipped)

    def test_assertions_take_a_task(self):
        result = tasks.ship.enqueue("o-1")
        self.assertEqual(result.id, assert_enqueued(td, tasks.ship, args=["o-1"]).id)
        refute_enqueued(td, tasks.ship, args=["o-2"])
        with self.assertRaisesRegex(AssertionError, r"shop\.tasks\.mail\(\) was not enqueued"):
            assert_enqueued(td, tasks.mail)

    def test_an_async_task_runs_in_this_thread(self):
        result = tasks.mail.enqueue("o-1", copies=3)
        drain()
        result.refresh()
        self.assertEqual((3, {"copies": 3}), (result.return_value, result.kwargs))

    async def test_an_async_test_enqueues_and_reads(self):
        result = await tasks.mail.aenqueue("o-1")
        await result.arefresh()
        self.assertEqual("READY", result.status)

    def test_a_job_waits_for_a_signal(self):
        job = tasks.refund.enqueue(7)
        self.assertEqual(1, drain().suspended)
        self.assertIn("refund:7", str(td.why(job.id)))

        td.signal("refund:7", True)
        self.assertEqual(1, drain().completed)
        self.assertEqual("paid 7", td.result(job))
        self.assertEqual(["weigh", "refund:7"], [step.name for step in td.steps(job.id)])

    async def test_an_async_test_sees_and_runs_its_jobs(self):
        """The twins work on the connection of the test, as the ORM does."""
        job = await tasks.label.aenqueue(order=7)
        other = await td.aenqueue("label", {"order": 8})
        self.assertEqual([other.id, job.id], [found.id for found in await td.ajobs()])
        await td.acancel(other.id)
        await td.schedules.aput("later", tasks.label, every=900, payload={"order": 9})
        self.assertEqual(["later"], [schedule.name for schedule in await td.schedules.alist()])
        await td.asignal("paid:7", True)
        self.assertTrue((await td.aget_signal("paid:7")).value)
        async with td.batch("labels") as batch:
            batch.add(tasks.label.request(order=10))
        [lease] = await td.aclaim(1, types=["label"])
        await lease.arelease()
        with self.assertRaisesMessage(SynchronousOnlyOperation, "await adrain()"):
            drain()
        self.assertEqual(2, (await adrain()).completed)
        self.assertEqual(7, await td.aresult(job))
        self.assertEqual("cancelled", (await td.aget(other.id)).status)

    def test_a_tick_runs_here_and_fires_schedules(self):
        jobs = [tasks.ship.enqueue("o-1"), tasks.mail.enqueue("o-1"), tasks.pack.enqueue("o-2")]
        tasks.label.using(start_within=1, run_at=timezone.now() - timedelta(hours=1)).enqueue(1)
        td.schedules.put("soon", tasks.label, every=1, payload={"order": 8})
        report = td.tick(max_jobs=2)
        self.assertEqual((2, 2, 1), (report.ran, report.completed, report.cancelled))
        self.assertLessEqual(report.next_due_at, timezone.now())
        self.assertEqual("completed", td.get(jobs[1].id).status)

    def test_the_drain_of_treadle_runs_here(self):
        result = tasks.ship.enqueue("o-1")
        self.assertEqual(1, drain_elsewhere(td).completed)
        self.assertEqual({"shipped": 1}, td.result(result.id))
        tasks.fail.enqueue(1)
        with self.assertRaisesRegex(AssertionError, "ValueError: attempt 1 of"):
            drain_elsewhere(td)
        for _ in range(3):
            tasks.label.enqueue(1)
        with self.assertRaisesRegex(AssertionError, "drain ran 1 jobs and more are due"):
            drain_elsewhere(td, max_jobs=1)
        with self.assertRaisesRegex(AssertionError, "drain has run for 1e-06 s, and more jobs are due"):
            drain_elsewhere(td, max_seconds=1e-6)

    async def test_an_async_test_ticks_and_drains_here(self):
        await tasks.mail.aenqueue("o-1")
        self.assertEqual(1, (await adrain_elsewhere(td)).completed)
        await tasks.mail.aenqueue("o-1")
        with self.assertRaisesMessage(SynchronousOnlyOperation, "await td.atick()"):
            td.tick()
        self.assertEqual(1, (await td.atick()).completed)

    def test_a_worker_is_refused_at_once(self):
        tasks.label.enqueue(1)
        with self.assertRaisesMessage(TreadleError, "from treadle.contrib.django.testing import drain"):
            td.worker().start()
        self.assertEqual(1, drain().completed)

    async def test_a_call_that_blocks_the_loop_is_named(self):
        with self.assertWarns(BlocksTheLoop) as caught, self.assertRaises(SynchronousOnlyOperation):
            tasks.ship.enqueue("o-1")
        self.assertEqual(__file__, caught.filename)

    def test_priorities_and_times(self):
        tasks.ship.using(priority=-100).enqueue("o-1")
        tasks.ship.using(priority=100).enqueue("o-1")
        later = tasks.ship.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("o-1")
        self.assertEqual(2, drain().ran)
        later.refresh()
        self.assertEqual("READY", later.status)
        self.assertEqual([0, 100, -100], [job.priority for job in td.jobs()])

    def test_a_failure_is_shown_with_its_class_and_tried_again(self):
        result = tasks.fail.enqueue(1, 2)
        with self.assertRaisesRegex(AssertionError, "ValueError: attempt 1 of"):
            drain()
        result.refresh()
        self.assertEqual(("READY", 1), (result.status, result.attempts))
        self.assertIs(ValueError, result.errors[0].exception_class)

    def test_a_task_has_finished_after_its_last_attempt(self):
        finished = []
        result = tasks.fail.enqueue(1)
        task_finished.connect(lambda task_result, **_: finished.append(task_result), weak=False, dispatch_uid="once")
        self.addCleanup(task_finished.disconnect, dispatch_uid="once")
        for _ in range(2):
            self.assertGreater(drain(raising=False).next_due_at, timezone.now())
            self.assertEqual([], finished)
            td.run_now(result.id)
        drain(raising=False)
        self.assertEqual([("FAILED", ValueError)], [(one.status, one.errors[0].exception_class) for one in finished])

    def test_arguments_that_do_not_fit_are_refused(self):
        with self.assertRaisesRegex(TypeError, r"tasks\.ship: missing a required argument: 'note'; it takes \(note: "):
            tasks.ship.enqueue()
        self.assertEqual("READY", tasks.fail.enqueue(1, 2).status)

    def test_a_row_as_an_argument_is_refused_with_its_key(self):
        row = Order.objects.get()
        payloads = {"order": row}, {"order": [{"row": row}]}
        for call in (lambda: tasks.ship.enqueue(row), *(partial(td.enqueue, "other", one) for one in payloads)):
            with self.assertRaisesMessage(NotJSON, "Order is unsupported; pass order.pk, and load the row"):
                call()

    def test_a_job_of_treadle_with_a_step_and_a_follow_up(self):
        job = tasks.pack.enqueue("o-2")
        self.assertEqual(2, drain().completed)
        self.assertEqual("o-2", td.get(job.id).result)
        self.assertEqual(Order.objects.get(note="o-2").pk, td.jobs(type="label").jobs[0].result)

    def test_what_is_done_inside_atomic_is_part_of_it(self):
        kept = [tasks.label.enqueue(n) for n in range(3)]
        with transaction.atomic():
            new = tasks.label.enqueue(3)
            self.assertEqual((Status.PENDING, 4, 4), (td.why(new.id).status, len(td.jobs()), td.count().value))
            td.cancel(new.id)
            td.delete(kept[0].id)
            td.reschedule(kept[1].id, delay=60)
            self.assertEqual([1], [work.done for work in td.bulk("cancel", "payload.order:2")])
            transaction.set_rollback(True)
        self.assertEqual((None, 3), (td.get(new.id), drain().completed))

    def test_an_enqueue_belongs_to_the_open_transaction(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            dropped = tasks.label.enqueue(1)
            self.assertEqual(Status.PENDING, td.get(dropped.id).status)
            raise ZeroDivisionError
        self.assertIsNone(td.get(dropped.id))
        self.assertEqual(0, drain().ran)

    def test_handlers_find_what_lifespans_have_opened(self):
        closed = []

        @td.lifespan
        async def resources():
            yield {"client": await Order.objects.acount(), "loop": id(asyncio.get_running_loop())}
            closed.append(await Order.objects.acount())

        self.addCleanup(td.registry._lifespans.clear)
        plain, on_loop = tasks.count_orders.enqueue(), tasks.acount_orders.enqueue()
        drain()
        self.assertEqual(([1, 1], [True, 1], [1]), (td.result(plain), td.result(on_loop), closed))

    def test_a_handler_completes_in_its_own_transaction(self):
        jobs = [tasks.settle.enqueue(f"o-{own}", own) for own in (True, False)]
        self.assertEqual(4, drain().completed)
        self.assertEqual(["o-True", "o-False"], [td.get(job.id).result for job in jobs])

    def test_a_handler_that_survives_an_error_of_the_database(self):
        job = tasks.clash.enqueue("o-3")
        drain()
        self.assertEqual(("clashed", 1), (td.get(job.id).result, Order.objects.filter(note="o-3").count()))

    def test_a_handler_that_fails_in_the_database_leaves_the_test_usable(self):
        job = tasks.broken.enqueue("o-4")
        drain(raising=False)
        self.assertEqual(Status.FAILED, td.get(job.id).status)
        self.assertTrue(Order.objects.filter(note="o-1").exists())

    def test_no_test_sees_the_jobs_of_another(self):
        self.assertEqual([], td.jobs().jobs)


class InOneTransaction(Jobs, TestCase):
    pass


class InTransactions(Jobs, TransactionTestCase):
    pass


class Pages(TestCase):
    def log_in(self, *permissions):
        user = User.objects.create_user("ann", password="x", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.client.force_login(user)

    def test_a_stranger_is_sent_to_the_login(self):
        response = self.client.get("/jobs/")
        self.assertRedirects(response, "/admin/login/?next=/jobs/", fetch_redirect_response=False)

    def test_staff_without_permission_is_refused(self):
        self.log_in()
        self.assertContains(self.client.get("/jobs/"), "need the permission treadle.view_job", status_code=403)

    def test_the_dashboard_shows_and_changes_what_the_test_has_written(self):
        self.log_in("view_job", "change_job")
        for number in range(2):
            job = tasks.label.enqueue(number)
            self.assertContains(self.client.get("/jobs/jobs"), job.id)
        done = self.client.post(f"/jobs/api/jobs/{job.id}/cancel", headers={"sec-fetch-site": "same-origin"})
        self.assertEqual((200, Status.CANCELLED), (done.status_code, td.get(job.id).status))

    def test_the_dashboard_ticks_in_the_transaction_of_the_test(self):
        self.log_in("view_job", "change_job")
        Order.objects.create(note="o-1")
        result = tasks.ship.enqueue("o-1")
        same, url = {"sec-fetch-site": "same-origin"}, "/jobs/api/jobs/tick"
        ticked = self.client.post(url, {}, content_type="application/json", headers=same)
        self.assertContains(ticked, '"completed":1')
        self.assertEqual({"shipped": 1}, td.result(result.id))

    def test_a_program_needs_a_token_and_is_not_sent_to_a_login(self):
        self.assertEqual(401, self.client.get("/jobs/api/stats").status_code)
        secret, other = new_secret(), new_secret()
        td.store.add_token(Token(hash=hash_of(secret), name="ci", scopes=("read",)))
        known, unknown = ({"authorization": f"Bearer {one}"} for one in (secret, other))
        self.assertEqual(200, self.client.get("/jobs/api/stats", headers=known).status_code)
        self.assertEqual(200, self.client.get("/jobs/jobs", headers=known).status_code)
        self.assertEqual(401, self.client.get("/jobs/api/stats", headers=unknown).status_code)
        with self.modify_settings(MIDDLEWARE={"append": "django.contrib.auth.middleware.LoginRequiredMiddleware"}):
            self.assertEqual(200, Client().get("/jobs/api/stats", headers=known).status_code)

    def test_the_admin_shows_jobs_and_changes_none(self):
        Order.objects.create(note="o-1")
        job = tasks.label.enqueue(7)
        self.log_in("view_job", "change_job", "delete_job", "add_job")
        listed = self.client.get("/admin/treadle/job/")
        self.assertContains(listed, job.id)
        self.assertContains(self.client.get(f"/admin/treadle/job/{job.id}/change/"), "label")
        self.assertEqual(403, self.client.post(f"/admin/treadle/job/{job.id}/delete/", {"post": "yes"}).status_code)
        self.assertEqual(403, self.client.get("/admin/treadle/job/add/").status_code)
        self.assertContains(self.client.get("/admin/treadle/job/?status=pending&q=label"), job.id)

    def test_the_admin_does_not_find_what_is_no_id(self):
        self.log_in("view_job")
        for id in ("nonsense", "00000000-0000-0000-0000-000000000000"):
            self.assertRedirects(self.client.get(f"/admin/treadle/job/{id}/change/"), "/admin/")

    def test_the_admin_shows_a_job_without_its_secrets(self):
        failed = tasks.sign_in.enqueue("ada", password="open-sesame")
        drain(raising=False)
        self.log_in("view_job")
        page = self.client.get(f"/admin/treadle/job/{failed.id}/change/")
        for shown in ("&quot;ada&quot;", "ValueError: ada, password=•••", "Traceback", f"/jobs/jobs/{failed.id}"):
            self.assertContains(page, shown)
        self.assertNotContains(page, "open-sesame")


def print_nothing(customer=""):
    pass


class Settings(TestCase):
    def test_no_migration_is_missing(self):
        call_command("makemigrations", check=True, dry_run=True, verbosity=0)

    def test_a_backend_with_an_unknown_option_is_refused(self):
        with self.assertRaisesRegex(ImproperlyConfigured, "has 'retries'; it may have max_attempts"):
            Backend("default", {"OPTIONS": {"retries": 3}})

    def test_options_that_would_do_nothing_are_refused(self):
        with self.assertRaisesRegex(ImproperlyConfigured, "have no tenant; count by .* per='payload.kwargs.customer'"):
            Backend("default", {"OPTIONS": {"limits": [Limit("exports", concurrency=1, per="tenant")]}})
        with self.assertRaisesRegex(ImproperlyConfigured, "has 'fair', and tasks of Django have no tenant"):
            Backend("default", {"OPTIONS": {"fair": "tenant"}})

    def test_a_limit_counts_by_a_keyword_argument(self):
        limit = Limit("of-tests", concurrency=1, per="payload.kwargs.customer")
        self.addCleanup(td.registry._functions.pop, f"{__name__}.print_nothing")
        backend = {"BACKEND": "treadle.contrib.django.Backend", "OPTIONS": {"limits": [limit]}}
        with self.settings(TASKS={"default": backend}):
            export = tasks.task(print_nothing)
            td.store.publish(published_types(td))  # as a worker does when it starts
            for customer in ("acme", "acme", "other"):
                export.enqueue(customer=customer)
            self.assertEqual(2, len(td.claim(10)))

    def test_what_is_wrong_is_named_with_its_setting(self):
        with self.assertRaisesRegex(ImproperlyConfigured, "TREADLE: retention=7: .* a timedelta"):
            DjangoTreadle({"RETENTION": 7})
        wrong = {"default": {"BACKEND": "treadle.contrib.django.Backend", "OPTIONS": {"max_attempts": 0}}}
        with (
            self.settings(TASKS=wrong),
            self.assertRaisesRegex(ImproperlyConfigured, r"TASKS\['default'\]\['OPTIONS'\]: max_attempts=0"),
        ):
            tasks.task(print_nothing)
        with (
            self.modify_settings(INSTALLED_APPS={"remove": ["treadle.contrib.django"]}),
            self.assertRaisesRegex(ImproperlyConfigured, "needs 'treadle.contrib.django' in INSTALLED_APPS"),
        ):
            tasks.ship.enqueue("o-1")

    def test_the_help_says_what_to_type(self):
        from treadle.contrib.django.management.commands.treadle import Command

        with (
            patch.dict(os.environ),
            patch.object(sys, "argv", []),
            redirect_stdout(io.StringIO()) as shown,
            self.assertRaises(SystemExit),
        ):
            Command().handle("jobs", "ls", "--help")
        self.assertIn("Usage: python manage.py treadle jobs ls [OPTIONS]", shown.getvalue())

    def test_commands_are_called_on_the_jobs_of_the_test(self):
        job = tasks.label.enqueue(1)
        before = dict(os.environ)
        call_command("treadle", "jobs", "ls", "--json", stdout=(shown := io.StringIO()))
        self.assertEqual([job.id], [one["id"] for one in json.loads(shown.getvalue())["items"]])
        call_command("treadle", "tick", stdout=io.StringIO())
        self.assertEqual(1, td.result(job))
        with self.assertRaisesMessage(CommandError, "treadle jobs show ffff has ended with exit code 4"):
            call_command("treadle", "jobs", "show", "ffff", stderr=io.StringIO())
        with self.assertRaisesMessage(CommandError, "from treadle.contrib.django.testing import drain"):
            call_command("treadle_worker", "--burst")
        self.assertEqual(before, dict(os.environ))

    def test_the_transaction_of_the_test_is_still_open(self):
        self.assertTrue(connection.in_atomic_block)


class Elsewhere(TestCase):
    def test_a_temporary_database_is_not_the_one_of_the_test(self):
        with temporary(td) as clock:
            tasks.label.using(delay=60).enqueue(1)
            clock.advance(60)
            self.assertEqual(1, drain_elsewhere(td).completed)
        self.assertEqual([], td.jobs().jobs)

    def test_handlers_use_the_connection_of_the_test(self):
        """In threads they would not see its rows, or wait for them."""
        Order.objects.create(note="o-1")
        with temporary(td) as clock:
            td.schedules.put("soon", tasks.label, every=60, payload={"order": 8})
            jobs = [tasks.ship.enqueue("o-1") for _ in range(9)]
            self.assertEqual(9, drain_elsewhere(td).completed)
            tasks.ship.enqueue("o-1")
            self.assertEqual((1, 0), ((ticked := td.tick()).completed, ticked.fired))
            clock.advance(60)
            self.assertEqual(1, drain_elsewhere(td).completed)
            clock.advance(60)
            self.assertEqual((1, 1), ((ticked := td.tick()).completed, ticked.fired))
            self.assertEqual({"shipped": 9}, td.result(jobs[-1].id))
        self.assertEqual(10, Order.objects.get(note="o-1").shipped)


class InThreads(TransactionTestCase):
    def test_handlers_leave_no_connections(self):
        """With one, Django could not drop the database after the tests."""
        Order.objects.create(note="o-1")
        with temporary(td), td.worker().start():
            for task, result in ((tasks.ship, {"shipped": 1}), (tasks.mail, 1)):  # SQLite in memory takes one at a time
                self.assertEqual(result, td.result(task.enqueue("o-1").id, timeout=20))
        if connection.vendor == "postgresql":
            eventually(lambda: sessions() == 1, within=10)


def sessions():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return cursor.fetchone()[0]
