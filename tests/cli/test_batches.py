"""`treadle batches`: what people read, and exit codes. tests/snapshots has the JSON."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

from treadle import Fail, Treadle
from treadle.testing import drain

Command = Callable[..., Result]


def make(td: Treadle) -> None:
    """A batch of which one member has failed and one waits, and an empty one of a tenant."""

    @td.job(max_attempts=1)
    def load(row: int) -> None:
        if row < 0:
            raise Fail("negative")

    @td.job
    def report() -> None: ...

    with td.batch("import-7", report.request()) as batch:
        batch.add(load.request(row=1), load.request(row=-1), load.using(delay=3600).request(row=2))
    drain(td, raising=False)
    with td.batch("nightly run", tenant="acme"):
        pass


def test_a_list_shows_progress_newest_first(treadle: Command, td: Treadle) -> None:
    make(td)
    lines = treadle("batches", "ls").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "nightly", "import-7"]
    assert "67%" in lines[2]
    assert "2 of 3; 1 failed" in lines[2]
    assert "open" in lines[2]
    assert "import-7" not in treadle("batches", "ls", "--tenant", "acme").stdout
    assert treadle("batches", "ls", "--tenant", "nobody").stderr == "no batches\n"
    assert "treadle batches ls --cursor" in treadle("batches", "ls", "-n", "1").stderr


def test_one_batch_shows_which_members_hold_it_up(treadle: Command, td: Treadle) -> None:
    make(td)
    shown = treadle("batches", "show", "import-7")
    assert "2 of 3; 1 failed" in shown.stdout
    assert "then report" in shown.stdout
    assert "1 scheduled" in shown.stdout
    assert "status:failed" in shown.stderr
    assert "none are stored" in treadle("batches", "show", "nightly run", "--tenant", "acme").stdout


def test_a_batch_that_does_not_exist(treadle: Command, td: Treadle) -> None:
    answer = treadle("batches", "show", "nightly")
    assert (answer.exit_code, "treadle batches ls" in answer.stderr) == (4, True)


def test_a_job_shows_its_batch(treadle: Command, td: Treadle) -> None:
    make(td)
    (job,) = td.jobs("batch:import-7 status:failed")
    assert "batch import-7" in treadle("jobs", "show", job.id).stdout
