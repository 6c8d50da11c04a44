"""Arguments, results and steps of types that JSON does not have."""

from __future__ import annotations

import datetime
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ForwardRef, Literal, NoReturn
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from treadle import Treadle, codec
from treadle.context import Context
from treadle.errors import BadArguments, BadHandler, NotJSON
from treadle.signature import Signature, returned


class Line(pydantic.BaseModel):
    sku: str
    quantity: int = 1


class Order(pydantic.BaseModel):
    id: int
    placed: datetime.datetime
    lines: list[Line] = []
    note: str | None = pydantic.Field(default=None, alias="customerNote")


class Refund(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    kind: Literal["refund"] = "refund"
    on: datetime.date


@dataclass
class Cat:
    name: str
    lives: int = 9


@dataclass
class Dog:
    name: str
    breed: str


@dataclass
class Named:
    """A Cat without its lives."""

    name: str


@dataclass
class Kennel:
    cat: Cat


@dataclass
class Register:
    cat: Named


@dataclass
class Shop:
    """A dataclass with a model inside."""

    owner: Line
    zone: ZoneInfo | None = None


@dataclass
class Loose:
    value: object


ORDER = Order(
    id=7, placed=datetime.datetime(2026, 11, 17, tzinfo=datetime.UTC), lines=[Line(sku="a")], customerNote="x"
)
REFUND = Refund(on=datetime.date(2026, 11, 17))


def of(hint: Any) -> Signature:
    """The signature of a handler that takes and returns this."""

    def handler(x): ...

    handler.__annotations__.update({"x": hint, "return": hint})
    return Signature(handler, "handler", Context)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Order, ORDER),
        (Refund, REFUND),
        (list[Order], [ORDER, ORDER]),
        (dict[str, Order], {"a": ORDER}),
        (tuple[int, Order], (1, ORDER)),
        (Order | None, ORDER),
        (Order | None, None),
        (Order | Refund, ORDER),
        (Order | Refund, REFUND),
        (list[Order | Refund | None], [ORDER, None, REFUND]),
        (Order | int | None, 3),
        (Order | int | None, None),
        (Order | list[int], [1, 2]),
        (Annotated[Order, "an order"], ORDER),
        (pydantic.HttpUrl, pydantic.HttpUrl("https://example.com/feed")),
        (Cat | Dog, Cat("Tom")),
        (Cat | Dog, Dog("Rex", "collie")),
        (Cat | Dog | None, None),
        (Cat | Named, Named("Tom")),
        (Named | Cat, Cat("Tom")),
        (Kennel | Register, Register(Named("Tom"))),
        (dict[str, Cat | Line], {"a": Cat("Tom"), "b": Line(sku="b")}),
        (Shop, Shop(Line(sku="c"), ZoneInfo("Europe/Berlin"))),
        (Path, Path("/var/lib/app")),
        (Path | None, None),
        (Path | int, Path("a.txt")),
        (list[PurePosixPath], [PurePosixPath("a/b")]),
        (dict[int, str], {1: "a"}),
        (ZoneInfo, ZoneInfo("America/New_York")),
        (object, {"a": [1]}),
        (list[object], [1, "a", None]),
        (dict[str, object] | None, {"a": 1}),
        (Loose, Loose({"b": 2})),
    ],
)
def test_arguments_and_results_come_back_as_they_were(hint: Any, value: Any) -> None:
    takes = of(hint)
    text = takes.encode({"x": value})
    back = takes.decode(text)["x"]
    assert back == value
    assert type(back) is type(value)
    stored = msgspec.json.decode(text)["x"]
    assert takes.result(stored) == value
    assert takes.from_json({"x": stored})["x"] == value


@dataclass
class Sizes:
    files: dict[Path, int]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (dict[Path, int], {Path("a"): 1}),
        (list[dict[ZoneInfo, str]], [{ZoneInfo("UTC"): "a"}]),
        (dict[pydantic.HttpUrl, int], {pydantic.HttpUrl("https://example.com/"): 1}),
        (Sizes, Sizes({Path("a"): 1})),
        (Sizes | Cat, Sizes({Path("a"): 1})),
    ],
)
def test_the_keys_of_a_result_have_their_type(hint: Any, value: Any) -> None:
    stored = msgspec.json.decode(codec.encode(value))
    assert of(hint).result(stored) == value
    assert of(hint).decode(of(hint).encode({"x": value})) == {"x": value}


def test_a_model_is_stored_by_its_aliases() -> None:
    stored = msgspec.json.decode(of(Order).encode({"x": ORDER}))["x"]
    assert stored["customerNote"] == "x"
    assert stored["placed"] == "2026-11-17T00:00:00Z"


@pytest.mark.parametrize(
    ("hint", "value", "says"),
    [
        (Order, {"id": 1}, "placed: Field required"),
        (Line, "text", "Input should be an object"),
        (Cat | Dog, {"age": 3}, "It fits none of Cat, Dog"),
        (Path, 3, "Expected `str`, got `int`"),
        (ZoneInfo, "Mars/Olympus", "There is no time zone 'Mars/Olympus' here"),
    ],
)
def test_a_stored_value_that_does_not_fit_is_refused_by_what_is_wrong(hint: Any, value: Any, says: str) -> None:
    takes = of(hint)
    with pytest.raises(BadArguments, match="the stored payload does not fit: ") as caught:
        takes.decode(msgspec.json.encode({"x": value}).decode())
    assert says in str(caught.value)
    assert takes.result(value) == value  # a result of an older deploy stays readable


def test_the_error_of_a_model_shows_no_values() -> None:
    with pytest.raises(BadArguments) as caught:
        of(Line).decode('{"x": {"sku": "s", "quantity": "hunter2"}}')
    assert "quantity" in str(caught.value)
    assert "hunter2" not in str(caught.value)


class Secret(pydantic.BaseModel):
    token: pydantic.SecretStr


class LineWithPrice(Line):
    price: int


@dataclass
class Puma:
    name: str
    lives: int = 9


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Secret, Secret(token=pydantic.SecretStr("s"))),
        (Line, LineWithPrice(sku="a", price=3)),
        (Cat | Puma, Puma("looks like a cat")),
        (Order, {"id": 1}),
    ],
)
def test_a_value_that_would_come_back_different_is_refused(hint: Any, value: Any) -> None:
    with pytest.raises(NotJSON, match="handler: x"):
        of(hint).encode({"x": value})


class Lock: ...


class Guarded(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True, frozen=True)
    lock: Lock


class Point(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    x: int


@dataclass
class Board:
    squares: dict[tuple[int, int], str]


class Writable(pydantic.BaseModel):
    """It has fields that pydantic cannot write by itself, and says how, or not to."""

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    lock: Annotated[Lock, pydantic.PlainSerializer(lambda lock: "lock")]
    left_out: Lock | None = pydantic.Field(default=None, exclude=True)


@pytest.mark.parametrize(
    "hint",
    [
        object(),
        Lock,
        list[Lock],
        Path | str,
        ZoneInfo | Path,
        range,
        dict[tuple[int, int], str],
        dict[Point, str],
        dict[Point | Path, str],
        dict[str | None, str],
        list[dict[bool, str]],
        Board,
        Guarded,
        list[Guarded | None],
        Guarded | Cat,
    ],
)
def test_a_type_that_cannot_be_stored_is_refused_at_decoration(hint: Any) -> None:
    def takes(x): ...

    def returns(): ...

    takes.__annotations__["x"] = returns.__annotations__["return"] = hint
    with pytest.raises(BadHandler, match="takes cannot be a job"):
        Signature(takes, "takes", Context)
    with pytest.raises(BadHandler, match=r"returns cannot be a job: it returns .* cannot be stored"):
        Signature(returns, "returns", Context)


@pytest.mark.parametrize("hint", [Writable, dict[Path | int, str], dict[pydantic.HttpUrl, int], dict[Any, int], dict])
def test_a_type_that_can_be_stored_is_accepted(hint: Any) -> None:
    assert of(hint)


@dataclass
class Owner:
    pet: Cat | Dog


@dataclass
class Item:
    what: Line | int


class Home(pydantic.BaseModel):
    pet: Cat | Dog
    what: Line | int


@pytest.mark.parametrize(("hint", "union"), [(Owner, "Cat | .*Dog"), (list[Owner | None], "Cat"), (Item, "Line | int")])
def test_a_union_in_a_field_of_a_dataclass_is_refused_with_the_fix(hint: Any, union: str) -> None:
    with pytest.raises(BadHandler, match=rf"{union}.* in a field; a field of a pydantic model may have this type"):
        of(hint)
    home = Home(pet=Dog("Rex", "collie"), what=Line(sku="a"))
    assert of(Home).decode(of(Home).encode({"x": home})) == {"x": home}


def test_a_parameter_with_a_default_may_have_any_type() -> None:
    class Client: ...

    def handler(x: int, client=None): ...

    handler.__annotations__["client"] = Client
    takes = Signature(handler, "handler", Context)
    assert takes.decode(takes.encode({"x": 1})) == {"x": 1}
    with pytest.raises(NotJSON, match="handler: client"):
        takes.encode({"x": 1, "client": Client()})


@pytest.mark.parametrize("hint", [NoReturn, object, Any, None, "Missing"])
def test_what_says_nothing_about_the_result_is_accepted(hint: Any) -> None:
    def returns(): ...

    returns.__annotations__["return"] = hint
    assert Signature(returns, "returns", Context).result({"a": 1}) == {"a": 1}


def test_a_context_that_is_not_first_is_refused() -> None:
    def late(x: int, ctx: Context) -> None: ...

    def maybe(x: int, ctx: Context | None = None) -> None: ...

    def named(*, ctx: Context) -> None: ...

    def annotated(x: int, ctx: Annotated[Context, "of treadle"]) -> None: ...

    def quoted(x: int, ctx: "Context") -> None: ...  # noqa: UP037 (the quotes are what is tested)

    for handler in (late, maybe, named, annotated, quoted):
        with pytest.raises(BadHandler, match="'ctx' is a Context, but not its first parameter; put it first"):
            Signature(handler, "handler", Context)


def test_a_context_that_is_imported_for_type_checkers_only_is_refused() -> None:
    def handler(ctx, x: int) -> None: ...

    parts = ("missing.Context", "{} | None", "None | {}", "Optional[{}]", "t.Union[None, {}]", "Annotated[{}, 1]")
    texts = ["treadle.Context", "'treadle.Context'", *(part.format("missing.Context") for part in parts)]
    for text in (*texts, ForwardRef("missing.Context")):  # this module has none of these names
        handler.__annotations__["ctx"] = text
        with pytest.raises(BadHandler, match=r"'ctx' is a .*Context.*; import it at the top, and not only"):
            Signature(handler, "handler", Context)


def test_a_context_of_the_apps_own_is_an_argument() -> None:
    """One that is imported for type checkers only, where treadle would not fill in its own."""

    def render(template: str, context) -> None: ...

    def fetch(context=None, url: str = "") -> None: ...

    def show(context) -> None: ...

    def named(*, context) -> None: ...

    texts = {"missing.Context": (render, fetch, named), "missing.Contexts": (render, fetch, show, named)}
    texts |= {"missing.Context | None": (fetch,), "list[missing.Context]": (show,), "Missing[Context]": (show,)}
    for text, handlers in texts.items():
        for handler in handlers:
            handler.__annotations__["context"] = text
            assert "context" in Signature(handler, "handler", Context).names


def test_annotations_may_be_quoted_also_inside() -> None:
    def quoted(ctx: "Context", order: "Order", lines: list["Line"]) -> "Receipt": ...  # noqa: UP037

    def annotated(ctx: Annotated["Context", "of treadle"], order: Order) -> Annotated["Order", 1]: ...  # noqa: UP037

    takes = Signature(quoted, "quoted", Context)
    assert takes.takes_context
    assert takes.names == ("order", "lines")
    assert takes.decode(takes.encode({"order": ORDER, "lines": [Line(sku="a")]}))["order"] == ORDER
    assert takes.result({"orders": [{"sku": "a"}]}) == Receipt([Line(sku="a")])
    assert Signature(annotated, "annotated", Context).takes_context
    with pytest.raises(BadHandler, match="it returns Lock, which cannot be stored"):
        Signature(returns_lock, "returns_lock", Context)


def returns_lock() -> "Lock": ...  # noqa: UP037


@dataclass
class Receipt:
    orders: list[Line]


def test_a_step_may_return_a_model() -> None:
    def fetch() -> list[Order]: ...

    assert returned(fetch) == list[Order]


def test_by_name_a_payload_may_be_json(treadle_url: str) -> None:
    td = Treadle(treadle_url)

    @td.job
    def ship(order: Order, to: Path) -> None: ...

    by_name = td.enqueue("ship", {"order": ORDER.model_dump(mode="json", by_alias=True), "to": "/dock"})
    assert by_name.payload == ship.enqueue(ORDER, Path("/dock")).payload
    with pytest.raises(NotJSON, match="placed: Field required"):
        td.enqueue("ship", {"order": {"id": 1}, "to": "/dock"})


def test_an_argument_of_another_type_is_refused_with_the_fix() -> None:
    def ship(order: Order, count: int) -> None: ...

    arguments = {"order": ORDER, "count": 1}
    for wrong, text in [
        ({"order": 1}, "ship: order=1 does not fit Order: Input should be an object"),
        ({"count": "x"}, "ship: count='x' does not fit int: Expected `int`, got `str`"),
    ]:
        with pytest.raises(NotJSON) as error:
            Signature(ship, "ship", Context).encode({**arguments, **wrong})
        assert text == str(error.value)
    with pytest.raises(
        NotJSON, match=r"the handler takes Order; pass Order\(\*\*…\), or annotate the parameter with dict"
    ):
        Signature(ship, "ship", Context).encode({**arguments, "order": ORDER.model_dump(mode="json", by_alias=True)})


def test_a_result_that_does_not_fit_is_returned_as_it_is_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def fetch() -> Order: ...

    signature = Signature(fetch, "fetch", Context)
    assert [{"id": "nope"}] * 2 == [signature.result({"id": "nope"}) for _ in range(2)]
    (record,) = caplog.records
    start = "a result of fetch does not fit Order and is returned as it was stored: id: "
    assert record.getMessage().startswith(start)


def test_the_form_of_a_type_does_not_show_the_defaults_of_a_model() -> None:
    assert '"default"' not in of(Order).schema


def test_pydantic_is_imported_only_by_the_app() -> None:
    code = """
import sys, pathlib, treadle
td = treadle.Treadle("sqlite:///never_used.db")
@td.job
def work(x: pathlib.Path) -> dict: ...
class Unknown: ...
try: treadle.codec.encode(Unknown())
except TypeError: pass
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
