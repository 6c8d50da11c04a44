"""Calls that take a name or a list of names say so if they get something else. The check is in front of all stores, so
that one database shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from treadle import Treadle
from treadle.errors import BadFilter, BadOption, UnknownOption

NOW = datetime.now(UTC)


@pytest.fixture
def td(tmp_path: Path) -> Iterator[Treadle]:
    app = Treadle(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    app.close()


def test_a_text_in_place_of_a_list_of_names_is_an_error(td: Treadle) -> None:
    """It would be taken for its letters: queues that do not exist, of which nothing is ever claimed."""
    td.enqueue("mail", queue="fast")
    with pytest.raises(BadOption, match=r"queues='fast': a list of names, such as \['mail'\]"):
        td.worker(queues="fast")
    with pytest.raises(BadOption, match=r"queues='fast': a list of names"):
        td.claim(queues="fast")
    with pytest.raises(BadOption, match=r"types='mail': a list of names"):
        td.claim(types="mail")
    assert td.worker(queues=["fast"]).queues == ("fast",)
    [lease] = td.claim(types=["mail"], queues=("fast",))
    lease.release()


def test_a_function_in_a_list_of_types_is_an_error(td: Treadle) -> None:
    @td.job
    def mail(to: str) -> None: ...

    wrong: Any = [mail]
    with pytest.raises(BadOption, match=r"types=<job mail>: use a string"):
        td.claim(types=wrong)


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda td, mail: td.jobs(type=mail), "type=<job mail>"),
        (lambda td, mail: td.jobs(queue=mail), "queue=<job mail>"),
        (lambda td, mail: td.jobs(subject=7), "subject=7"),
        (lambda td, mail: td.jobs(tenant=7), "tenant=7"),
        (lambda td, mail: td.jobs(batch=["import"]), r"batch=\['import'\]"),
        (lambda td, mail: td.enqueue(mail, {"to": "ann"}), "type=<job mail>"),
        (lambda td, mail: td.get_signal(mail), "signal=<job mail>"),
        (lambda td, mail: td.batches.get(mail), "batch=<job mail>"),
        (lambda td, mail: td.schedules.get(mail), "schedule=<job mail>"),
        (lambda td, mail: td.schedules.why(mail), "schedule=<job mail>"),
        (lambda td, mail: td.schedules.pause(mail), "schedule=<job mail>"),
        (lambda td, mail: td.schedules.resume(mail), "schedule=<job mail>"),
        (lambda td, mail: td.schedules.run_now(mail), "schedule=<job mail>"),
        (lambda td, mail: td.schedules.backfill(mail, NOW, NOW), "schedule=<job mail>"),
        (lambda td, mail: td.schedules.delete(mail), "schedule=<job mail>"),
    ],
)
def test_what_has_a_name_in_place_of_its_name_is_an_error(
    td: Treadle, call: Callable[[Treadle, Any], object], shown: str
) -> None:
    """On SQLite it was that the file is broken."""

    @td.job
    def mail(to: str) -> None: ...

    with pytest.raises(BadOption, match=f"{shown}: pass its name, a text"):
        call(td, mail)


def test_a_name_that_nothing_has_finds_nothing(td: Treadle) -> None:
    assert td.jobs(type="", queue="x" * 300).jobs == []
    assert td.get_signal("") is td.batches.get("") is td.schedules.get("") is None


def test_an_argument_in_place_of_the_payload_is_named_with_the_dict_that_it_belongs_in(td: Treadle) -> None:
    wrong: Any = {"to": "ann"}
    way_out = r"unknown option 'to'; .*; arguments are a dict: td.enqueue\('mail', \{'to': …\}\)"
    for call in (td.enqueue, td.request, lambda *a, **k: asyncio.run(td.aenqueue(*a, **k))):
        with pytest.raises(UnknownOption, match=way_out):
            call("mail", **wrong)
    misspelt: Any = {"dely": 5}
    with pytest.raises(UnknownOption, match="unknown option 'dely'; did you mean 'delay'"):
        td.request("mail", **misspelt)


def test_requests_that_are_no_list_are_an_error(td: Treadle) -> None:
    request = td.request("mail")
    every_wrong: list[Any] = [request, (request for _ in range(2)), "mail", {"to": "ann"}, None]
    for wrong in every_wrong:
        with pytest.raises(BadOption, match=r"enqueue_many=.*: a list of requests: "):
            td.enqueue_many(wrong)
        with pytest.raises(BadOption, match=r"enqueue_many=.*: a list of requests: "):
            asyncio.run(td.aenqueue_many(wrong))


def test_a_function_in_place_of_a_filter_is_an_error(td: Treadle) -> None:
    wrong: Any = td.job(type="mail")(lambda: None)
    for call in (td.jobs, td.count, lambda wanted: td.bulk("retry", wanted)):
        with pytest.raises(BadFilter, match=r"cannot read <job mail>: write it as a text, such as 'status:failed'"):
            call(wrong)
