"""The form for a new job, and the suggestions of the filter box."""

from __future__ import annotations

import enum
import re
from typing import Any, Literal

import pytest
from msgspec import UNSET

from tests.web.conftest import Connect
from tests.web.test_jobs import problem
from treadle import Context, Treadle
from treadle.errors import BadOption
from treadle.web.fields import Field, fields_of, value_of


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


def declare(td: Treadle) -> Any:
    @td.job(queue="paint")
    def paint(
        ctx: Context,
        name: str,
        coats: int,
        color: Color,
        price: float = 1.0,
        wet: bool = False,
        kind: Literal["oil", 3] = "oil",
        note: str | None = None,
        tags: list[str] = [],  # noqa: B006
        what: Any = None,
    ) -> None: ...

    return paint


KINDS = [
    *("text", "integer", "choice", "number", "boolean", "choice", "text", "json", "json"),
]
GOOD = {"arg-name": "wall", "arg-coats": "2", "arg-color": '"red"'}


def test_a_signature_becomes_fields(td: Treadle) -> None:
    fields = fields_of(declare(td).job_type.signature.schema)
    assert fields is not None
    assert [field.kind for field in fields] == KINDS
    assert [field.name for field in fields if field.required] == ["name", "coats", "color"]
    assert [field.name for field in fields if field.nullable] == ["note"]
    assert [set(field.choices) for field in fields if field.choices] == [{'"red"', '"blue"'}, {'"oil"', "3"}]


@pytest.mark.parametrize("broken", ["", "[]", "{", '{"properties": 3}', "null"])
def test_a_schema_that_cannot_be_read_has_no_fields(broken: str) -> None:
    assert fields_of(broken) is None


def test_properties_that_were_broken_by_hand_are_json() -> None:
    fields = fields_of('{"properties": {"a": 3, "b": {"$ref": "#/$defs/x"}, "c": {"type": ["a"]}}, "required": 7}')
    assert fields is not None
    assert {field.kind for field in fields} == {"json"}


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        (Field("a", "text", True), "", ""),
        (Field("a", "text", True, nullable=True), "", None),
        (Field("a", "text", False), "", UNSET),
        (Field("a", "text", False), " x ", " x "),
        (Field("a", "integer", True), " 7 ", 7),
        (Field("a", "number", True), "1.5", 1.5),
        (Field("a", "number", True), "2", 2),
        (Field("a", "boolean", True), "true", True),
        (Field("a", "integer", False), "", UNSET),
        (Field("a", "integer", True, nullable=True), "", None),
        (Field("a", "choice", True, choices=('"x"', "3")), "3", 3),
        (Field("a", "json", True), '{"b": [1]}', {"b": [1]}),
        (Field("a", "json", False), "", UNSET),
    ],
    ids=str,
)
def test_what_a_field_says(field: Field, text: str, value: Any) -> None:
    assert value_of(field, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *[("integer", text) for text in ("", "x", "1.5", "true", '"1"')],
        *[("number", text) for text in ("x", "true", "NaN", "[]")],
        *[("boolean", text) for text in ("yes", "1", "")],
        *[("json", text) for text in ("{", "text", "", "[" * 5000)],
        ("choice", "green"),
    ],
)
def test_a_text_that_does_not_fit_is_refused(kind: Any, text: str) -> None:
    with pytest.raises(BadOption, match="a="):
        value_of(Field("a", kind, True, choices=('"red"',)), text)


# The page


def test_the_form_has_a_field_for_each_argument(connect: Connect, td: Treadle) -> None:
    declare(td)
    assert 'data-testid="new"' in connect().get("/jobs").text
    page = connect().get("/jobs/new", params={"type": "paint"}).text
    assert re.findall(r'name="arg-(\w+)"', page) == [
        "name",
        "coats",
        "color",
        "price",
        "wet",
        "kind",
        "note",
        "tags",
        "what",
    ]
    assert '<option value="paint">' in connect().get("/jobs/new").text


def test_a_job_is_enqueued_by_the_form(connect: Connect, td: Treadle) -> None:
    declare(td)
    data = {**GOOD, "type": "paint", "arg-tags": '["a"]', "priority": "4", "when": "1h", "tenant": "acme"}
    answer = connect().post("/jobs/new", data=data)
    assert answer.status_code == 200
    [job] = td.jobs()
    assert str(answer.url).endswith(f"/jobs/{job.id}")
    assert job.payload == {"name": "wall", "coats": 2, "color": "red", "tags": ["a"]}
    assert (job.priority, job.tenant, job.queue, job.run_at > job.created_at) == (4, "acme", "paint", True)
    assert [(row.action, row.what) for row in td.store.audits(5)] == [("enqueue", job.id)]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("arg-coats", "many"),
        ("arg-coats", ""),
        ("arg-color", '"green"'),
        ("arg-tags", "[1]"),
        ("arg-tags", "{"),
        ("when", "soon"),
        ("priority", "99999"),
        ("queue", "q" * 201),
        ("type", ""),
    ],
)
def test_what_does_not_fit_is_shown_again_and_nothing_is_stored(
    connect: Connect, td: Treadle, field: str, text: str
) -> None:
    declare(td)
    answer = connect().post("/jobs/new", data={"type": "paint", **GOOD, field: text})
    assert answer.status_code == 400
    assert ('data-testid="new-error"' in answer.text) == (field != "type")
    assert td.jobs().jobs == []


def test_what_workers_published_is_enough(connect: Connect, td: Treadle) -> None:
    """The dashboard of another process, which has no handlers."""
    app = Treadle(td.store.url)
    app.store.publish([declare(app).job_type.published("[]")])
    app.close()
    page = connect().get("/jobs/new", params={"type": "paint"}).text
    assert 'name="arg-coats"' in page
    assert connect().post("/jobs/new", data={"type": "paint", **GOOD}).status_code == 200
    assert connect().post("/jobs/new", data={"type": "paint", **GOOD, "arg-coats": "x"}).status_code == 400
    [job] = td.jobs()
    assert (job.payload["coats"], job.queue) == (2, "paint")


def test_an_unknown_type_has_one_field_for_its_payload(connect: Connect, td: Treadle) -> None:
    page = connect().get("/jobs/new", params={"type": "<new>"}).text
    assert 'name="payload"' in page
    assert "<new>" not in page
    assert connect().post("/jobs/new", data={"type": "new", "payload": '{"a": 1}'}).status_code == 200
    for wrong in ("[1]", "{", "3"):
        assert connect().post("/jobs/new", data={"type": "new", "payload": wrong}).status_code == 400
    assert [job.payload for job in td.jobs()] == [{"a": 1}]


def test_the_form_needs_the_scope_enqueue(connect: Connect, td: Treadle) -> None:
    assert connect("read").get("/jobs/new").status_code == 403
    assert connect("read").post("/jobs/new", data={"type": "a"}).status_code == 403
    assert 'data-testid="new"' not in connect("read").get("/jobs").text
    stored = connect("enqueue").post("/jobs/new", data={"type": "a"})
    assert 'data-testid="stored"' in stored.text
    assert len(td.jobs()) == 1


def test_a_caller_bound_to_a_tenant_enqueues_for_it(connect: Connect, td: Treadle) -> None:
    declare(td)
    td.enqueue("theirs", tenant="umbrella")
    bound = connect("read enqueue @acme")
    page = bound.get("/jobs/new").text
    assert "theirs" not in page
    assert 'value="paint"' not in page
    assert 'name="tenant"' not in bound.get("/jobs/new?type=paint").text
    bound.post("/jobs/new", data={"type": "paint", **GOOD})
    assert [job.tenant for job in td.jobs("type:paint")] == ["acme"]
    assert bound.post("/jobs/new", data={"type": "paint", **GOOD, "tenant": "umbrella"}).status_code == 403


# Suggestions


def test_the_terms_of_a_filter_are_suggested(connect: Connect, td: Treadle) -> None:
    td.enqueue("send mail", queue="q", tenant="acme")
    items = connect().get("/api/filter-terms").json()["items"]
    assert {"status:failed", "status:pending", 'type:"send mail"', "queue:q", "tenant:acme", "since:1h"} <= set(items)
    for term in items:
        if not term.endswith((":", ".", ">")):
            assert connect().get("/api/jobs", params={"q": term}).status_code == 200
    page = connect().get("/jobs").text
    assert 'list="terms"' in page


def test_a_caller_bound_to_a_tenant_gets_only_its_own_values(connect: Connect, td: Treadle) -> None:
    td.enqueue("mine", queue="a", tenant="acme")
    td.enqueue("theirs", queue="b", tenant="umbrella")
    items = connect("read @acme").get("/api/filter-terms").json()["items"]
    assert "type:mine" in items
    assert not [term for term in items if "theirs" in term or "umbrella" in term or term == "queue:b"]
    problem(connect("enqueue").get("/api/filter-terms"), 403, "not-allowed")


def test_the_number_of_suggestions_is_bounded(connect: Connect, td: Treadle) -> None:
    td.enqueue_many([td.request(f"t{n}", tenant=f"x{n}") for n in range(200)])
    items = connect().get("/api/filter-terms").json()["items"]
    assert sum(term.startswith("type:t") for term in items) == 50
    assert sum(term.startswith("tenant:x") for term in items) == 50
