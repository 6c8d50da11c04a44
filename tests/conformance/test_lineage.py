"""The jobs that a job comes from, and that come from it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.helpers import COMPLETED, HOUR, ids, new_job, put, put_many, settle_one, take
from treadle.ids import new_id
from treadle.job import Job
from treadle.lineage import Edge, Lineage, layers, neighbors


def child_of(store: Any, *parents: Job, **options: Any) -> Job:
    return put(store, "child", after=tuple(ids(parents)), **options)


def related(store: Any, job: Job, most: int = 1_000, tenant: str | None = None) -> Lineage:
    found = store.lineage(job.id, most, tenant)
    assert found is not None
    assert found.nodes[0].id == job.id
    return found


def test_a_job_alone(store: Any) -> None:
    job = put(store, "mail", queue="slow", tenant="acme", subject="call-7")
    found = related(store, job)
    [node] = found.nodes
    assert (node.id, node.type, node.queue, node.tenant, node.subject) == (job.id, "mail", "slow", "acme", "call-7")
    assert (node.state, node.created_at) == ("queued", job.created_at)
    assert (found.edges, found.cut) == ([], False)


def test_it_goes_up_and_down_any_number_of_steps(store: Any) -> None:
    origin = put(store, "order")
    mother, father = put(store, "left", origin=origin.id), put(store, "right", origin=origin.id)
    child = child_of(store, mother, father)
    follow_up = put(store, "notify", origin=child.id)
    put(store, "unrelated")
    everything = {
        Edge(origin.id, mother.id, "origin"),
        Edge(origin.id, father.id, "origin"),
        Edge(mother.id, child.id, "parent"),
        Edge(father.id, child.id, "parent"),
        Edge(child.id, follow_up.id, "origin"),
    }
    for job in (origin, mother, father, child, follow_up):
        found = related(store, job)
        assert {node.id for node in found.nodes} == {origin.id, mother.id, father.id, child.id, follow_up.id}
        assert (set(found.edges), len(found.edges), found.cut) == (everything, 5, False)


def test_the_state_of_each_job(store: Any) -> None:
    parent = put(store, "a")
    later = put(store, "b", origin=parent.id, delay=HOUR)
    child = child_of(store, parent)
    (claimed,) = take(store)
    states = {node.id: node.state for node in related(store, parent).nodes}
    assert states == {parent.id: "processing", later.id: "scheduled", child.id: "blocked"}
    assert settle_one(store, claimed, COMPLETED)
    assert related(store, child).nodes[1].state == "completed"


def test_the_nearest_are_kept_if_there_are_too_many(store: Any) -> None:
    chain = [put(store)]
    for _ in range(9):
        chain.append(child_of(store, chain[-1]))
    found = related(store, chain[4], most=5)
    assert {node.id for node in found.nodes} == set(ids(chain[2:7]))
    assert found.cut
    assert {(edge.source, edge.target) for edge in found.edges} == set(
        zip(ids(chain[2:6]), ids(chain[3:7]), strict=True)
    )
    assert not related(store, chain[4], most=10).cut


def test_a_wide_fan_in_is_cut(store: Any) -> None:
    parents = put_many(store, 50)
    last = child_of(store, *parents)
    found = related(store, last, most=20)
    assert (len(found.nodes), len(found.edges), found.cut) == (20, 19, True)
    found = related(store, parents[0], most=100)
    assert (len(found.nodes), len(found.edges), found.cut) == (51, 50, False)


def test_many_edges_among_few_jobs_are_cut(store: Any) -> None:
    first = put_many(store, 15)
    second = store.insert([new_job(after=tuple(ids(first))) for _ in range(15)])
    found = related(store, second[0], most=30)
    assert (len(found.nodes), len(found.edges), found.cut) == (30, 225, False)
    found = related(store, second[0], most=17)
    assert (len(found.nodes), found.cut) == (17, True)


def test_jobs_of_another_tenant_do_not_exist(store: Any) -> None:
    first = put(store, tenant="acme")
    foreign = put(store, tenant="bolt", origin=first.id)
    beyond = put(store, tenant="acme", origin=foreign.id)
    assert {node.id for node in related(store, first, tenant="acme").nodes} == {first.id}
    assert {node.id for node in related(store, first).nodes} == {first.id, foreign.id, beyond.id}
    assert store.lineage(foreign.id, 10, "acme") is None


def test_an_origin_or_a_parent_that_is_gone_is_left_out(store: Any) -> None:
    job = put(store, origin=new_id())
    parent = put(store)
    child = child_of(store, parent)
    (claimed, _) = sorted(take(store), key=lambda one: one.id == job.id)
    assert settle_one(store, claimed, COMPLETED)
    (claimed,) = take(store)
    assert settle_one(store, claimed, COMPLETED)
    store.delete(parent.id)
    assert [len(related(store, one).nodes) for one in (job, child)] == [1, 1]


@pytest.mark.parametrize("id", ["nonsense", new_id()])
def test_there_is_no_such_job(store: Any, id: str) -> None:
    assert store.lineage(id, 10) is None


def test_layers_are_the_longest_ways() -> None:
    targets = neighbors("abcdef", [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("a", "d"), ("e", "d"), ("e", "e")])
    assert layers(targets) == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 0, "f": 0}
    assert layers(neighbors("abc", [("a", "b"), ("b", "c"), ("c", "b")])) == {"a": 0, "b": 1, "c": 1}
