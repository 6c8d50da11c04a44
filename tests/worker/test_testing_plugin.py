"""`treadle.testing` with unittest, and as a pytest plugin."""

from __future__ import annotations

import unittest

import pytest

from tests.worker.test_testing import sign_up, td
from treadle.testing import drain, temporary

pytest_plugins = ["pytester"]


class WithUnittest(unittest.TestCase):
    def setUp(self) -> None:
        self.clock = self.enterContext(temporary(td))

    def test_unittest_needs_no_plugin(self) -> None:
        sign_up.enqueue(name="ann")
        drain(td)
        self.clock.advance(3600)
        self.assertEqual(drain(td).completed, 1)  # noqa: PT009


APP = """
    from treadle import Treadle
    td = Treadle("sqlite:////nonexistent/production.db")

    @td.job
    def send_mail(to: str) -> str:
        return f"to {to}"
"""


def test_the_plugin_gives_a_users_app_a_new_database_for_each_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=APP)
    pytester.makeconftest(
        """
        import pytest
        from shop import td

        @pytest.fixture(autouse=True)
        def jobs(treadle_temporary):
            treadle_temporary(td)
        """
    )
    pytester.makepyfile(
        """
        from datetime import timedelta
        import pytest
        from shop import send_mail, td
        from treadle.testing import assert_enqueued, drain, enqueued

        @pytest.mark.parametrize("turn", [1, 2])
        def test_each_has_its_own(turn, treadle_url, tmp_path):
            assert enqueued(td, send_mail) == []
            job = send_mail.enqueue(to="ann")
            assert td.store.where == str(tmp_path / "treadle-test.db")
            assert treadle_url == f"sqlite:///{tmp_path}/treadle-test.db"
            drain(td)
            assert td.result(job.id) == "to ann"

        def test_the_clock(treadle_clock):
            job = send_mail.using(delay=60).enqueue(to="bob")
            assert job.run_at == treadle_clock.now() + timedelta(seconds=60)
            assert drain(td).ran == 0
            treadle_clock.advance(60)
            assert drain(td).ran == 1

        def test_a_message_that_helps():
            send_mail.enqueue(to="ann")
            assert_enqueued(td, send_mail, to="bob")
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        ["*AssertionError: send_mail(to='bob') was not enqueued; the jobs are:", "*send_mail(to='ann') pending"]
    )


def test_the_plugin_only_adds_fixtures_for_projects_that_do_not_use_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("--fixtures", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["*fixtures defined from treadle.testing.plugin*", "treadle_temporary*"])
