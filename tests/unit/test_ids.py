"""Job ids rise, are unique, and differ between forked processes."""

from __future__ import annotations

import os
import threading
import time
import uuid

import pytest

from treadle import ids
from treadle.ids import is_id, new_id


def test_ids_rise():
    made = [new_id() for _ in range(20_000)]

    assert sorted(set(made)) == made


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front():
    before = time.time_ns() // 1_000_000
    parsed = uuid.UUID(new_id())
    after = time.time_ns() // 1_000_000

    assert (7, uuid.RFC_4122) == (parsed.version, parsed.variant)
    assert before <= parsed.int >> 80 <= after + 1


def test_ids_rise_though_the_clock_steps_back(monkeypatch):
    first = new_id()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)

    later = [new_id() for _ in range(100)]

    assert sorted(later) == later
    assert first < later[0]


def test_ids_of_many_threads_are_all_different():
    made: list[list[str]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda mine=mine: mine.extend(new_id() for _ in range(2_000))) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 8_000 == len({id for mine in made for id in mine})
    assert all(sorted(mine) == mine for mine in made)


def test_forked_siblings_make_different_ids():
    """Both continue from the state of their parent, in the same millisecond."""
    new_id()
    pipes = [os.pipe() for _ in range(3)]
    for reader, writer in pipes:
        if not os.fork():
            os.close(reader)
            os.write(writer, " ".join(new_id() for _ in range(200)).encode())
            os._exit(0)
        os.close(writer)
    made = [new_id() for _ in range(200)]
    for reader, _ in pipes:
        with open(reader) as pipe:
            made += pipe.read().split()
        os.wait()

    assert 800 == len(set(made))


def test_a_child_forked_while_a_thread_makes_an_id_can_make_its_own():
    with ids._lock:
        pid = os.fork()
        if not pid:
            new_id()
            os._exit(0)

    assert 0 == os.waitpid(pid, 0)[1]


def test_an_id_is_recognized():
    assert is_id(new_id())


ID = "01a1e107-e5dd-70e7-a57f-41525eb93b7c"


@pytest.mark.parametrize(
    "text", ["", "p1", "0190", ID.upper(), ID[:-1], f"{ID}0", f"{{{ID}}}", ID.replace("-", ""), None, 7]
)
def test_a_text_that_is_not_an_id_is_not_recognized(text):
    assert not is_id(text)


def test_the_start_of_an_id_is_a_range_of_ids():
    id = ids.new_id()
    for n in range(1, 37):
        for start in (id[:n], id[:n].upper(), id[:n].replace("-", "")):
            first, last = ids.ids_from(start) or ("", "")
            assert first <= id <= last
            assert all(end.startswith(id[:n].rstrip("-")) and is_id(end) for end in (first, last))


@pytest.mark.parametrize("text", ["", "-", "x", "019g", "0" * 33, "٣", "01*", "01 "])
def test_what_no_id_begins_with_is_no_range(text):
    assert ids.ids_from(text) is None


@pytest.mark.parametrize("name", ["web-1-4711", "a.b-7", "-", "é-1"])
def test_the_id_of_a_worker_begins_with_its_name(name):
    first, second = ids.new_worker_id(name), ids.new_worker_id(name)
    assert first != second
    assert [ids.worker_name(first), ids.worker_name(second)] == [name, name]


@pytest.mark.parametrize("id", ["", "w1", "host-1", new_id()])
def test_an_id_without_a_name_stands_for_itself(id):
    assert ids.worker_name(id) == id
