"""Whatever is sent to the API, the response is one that the OpenAPI document declares, never a 500, and in time."""

from __future__ import annotations

import os
from typing import Any

import pytest
import schemathesis
from hypothesis import Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.requests import Request

from tests.web.test_odd_inputs import SECONDS, TRIES
from treadle import Treadle
from treadle.web.app import API
from treadle.web.route import Route

HEADERS = {"Authorization": "Bearer of-everything", "Host": "localhost"}
EXAMPLES = max(15, int(os.environ.get("TREADLE_TEST_ODD_INPUTS", "0")) // 100)
"""Of each route."""
LEFT_OUT = [positive_data_acceptance]
"""A schema cannot describe everything that is refused: a NUL in a payload, a filter with an open quote."""


def by_token(request: Request) -> str | None:
    return "manage" if request.headers.get("authorization") == HEADERS["Authorization"] else None


@pytest.fixture(scope="module")
def contract(shared_td: Treadle) -> Any:
    """The document of a site with jobs in it."""
    for n in range(5):
        shared_td.enqueue("noop", {"n": n}, tenant="acme")
    shared_td.tick(max_jobs=2)
    return schemathesis.openapi.from_asgi("/api/openapi.json", shared_td.asgi(auth=by_token), headers=HEADERS)


@pytest.mark.parametrize("route", [route for route in API if not route.stream], ids=lambda r: f"{r.method} {r.path}")
def test_every_response_is_one_that_the_document_declares(contract: Any, route: Route) -> None:
    operation = contract[route.path][route.method]

    @settings(max_examples=EXAMPLES, phases=(Phase.explicit, Phase.generate))
    @given(case=operation.as_strategy())
    def whatever_is_sent(case: Any) -> None:
        answers = (case.call_and_validate(headers=HEADERS, excluded_checks=LEFT_OUT) for _ in range(TRIES))
        assert any(answer.elapsed < SECONDS for answer in answers), case

    whatever_is_sent()
