"""How long to wait after a failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.backoff import DEFAULT, exponential, fixed, listed, to_backoff
from treadle.errors import BadOption


def test_exponential_doubles_up_to_its_cap():
    policy = exponential(base=30, cap=600)

    assert [30, 60, 120, 240, 480, 600, 600] == [policy(n) for n in range(1, 8)]


@given(st.integers(1, 10**9), st.floats(0, 1e6), st.floats(0, 1e9))
def test_exponential_never_exceeds_its_cap_or_overflows(failures, base, cap):
    assert 0 <= exponential(base, cap)(failures) <= cap


@given(st.integers(1, 20), st.floats(0, 1))
def test_jitter_stays_within_its_share(failures, jitter):
    exact = exponential(1, 600)(failures)

    delay = exponential(1, 600, jitter=jitter)(failures)

    assert exact * (1 - jitter) - 1e-9 <= delay <= exact * (1 + jitter) + 1e-9


def test_there_is_no_jitter_by_default():
    assert 1 == len({exponential(7, 600)(3) for _ in range(20)})
    assert 1 < len({exponential(7, 600, jitter=0.5)(3) for _ in range(20)})


def test_a_list_is_used_in_order_and_its_last_value_is_repeated():
    policy = listed([1, 5, 60])

    assert [1, 5, 60, 60, 60] == [policy(n) for n in range(1, 6)]


def test_fixed_is_the_same_every_time():
    assert [3, 3, 3] == [fixed(3)(n) for n in (1, 2, 99)]


def test_every_way_to_write_a_policy():
    own = lambda failures: failures * 2.0  # noqa: E731

    assert DEFAULT is to_backoff(None)
    assert own is to_backoff(own)
    assert 7 == to_backoff(7)(1)
    assert 0.5 == to_backoff(0.5)(9)
    assert [1, 2] == [to_backoff((1, 2))(n) for n in (1, 2)]


@pytest.mark.parametrize("policy", ["fast", True, object(), {"base": 1}])
def test_a_value_that_is_not_a_policy_is_refused_and_shown(policy):
    with pytest.raises(BadOption, match="pass exponential") as error:
        to_backoff(policy)

    assert policy is error.value.value


@pytest.mark.parametrize("policy", [[], (), [1, -1], -1, ["a"], [None]])
def test_invalid_delays_are_refused(policy):
    with pytest.raises(BadOption):
        to_backoff(policy)


@pytest.mark.parametrize("options", [{"base": -1}, {"cap": -1}, {"jitter": 1.1}, {"jitter": -0.1}])
def test_invalid_arguments_of_exponential_are_refused(options):
    with pytest.raises(BadOption):
        exponential(**options)


def test_the_default_grows_and_is_bounded():
    delays = [DEFAULT(n) for n in (1, 5, 50)]

    assert sorted(delays) == delays
    assert 4 <= delays[0] <= 6
    assert delays[-1] <= 660
