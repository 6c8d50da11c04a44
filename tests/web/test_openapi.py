"""Whatever is sent to the API, the response is one that the OpenAPI document declares, and never a 500."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.requests import Request

from treadle import Treadle
from treadle.web.app import API
from treadle.web.route import Route

HEADERS = {"Authorization": "Bearer of-everything", "Host": "localhost"}
EXAMPLES = 15
LEFT_OUT = [positive_data_acceptance]
"""A schema cannot describe everything that is refused: a NUL in a payload, a filter with an open quote."""


def by_token(request: Request) -> str | None:
    return "manage" if request.headers.get("authorization") == HEADERS["Authorization"] else None


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The document of a site with jobs in it, and a handler so that it can tick."""
    folder: Path = tmp_path_factory.mktemp("contract")
    td = Treadle(f"sqlite:///{folder}/jobs.db")

    @td.job
    def noop(n: int = 0) -> int:
        return n

    for n in range(5):
        td.enqueue("noop", {"n": n}, tenant="acme")
    td.tick(max_jobs=2)
    return schemathesis.openapi.from_asgi("/api/openapi.json", td.asgi(auth=by_token), headers=HEADERS)


@pytest.mark.parametrize("route", [route for route in API if not route.stream], ids=lambda r: f"{r.method} {r.path}")
def test_every_response_is_one_that_the_document_declares(contract: Any, route: Route) -> None:
    operation = contract[route.path][route.method]

    @settings(max_examples=EXAMPLES, phases=(Phase.explicit, Phase.generate))
    @given(case=operation.as_strategy())
    def whatever_is_sent(case: Any) -> None:
        case.call_and_validate(headers=HEADERS, excluded_checks=LEFT_OUT)

    whatever_is_sent()
