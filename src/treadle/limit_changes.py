"""`td.limits`: what people change of limits at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.codec import decode_as
from treadle.errors import BadOption, UnknownLimit
from treadle.limits import OF_TYPE, Limit, LimitChange, LimitState, Rate, checked_bounds, checked_limit_name
from treadle.pausing import who
from treadle.results import WithTwins, twin
from treadle.settings import checked_name

if TYPE_CHECKING:
    from treadle.app import Treadle


class AppLimits(WithTwins):
    """`td.limits`: a look at all limits, and changes at run time."""

    def __init__(self, app: Treadle) -> None:
        self._app = app

    def list(self) -> Sequence[LimitState]:
        """All limits that workers have published, and all that somebody has changed, by name and key, with how much
        of each is used."""
        return self._app.store.limits()

    def get(self, name: str, *, key: str = "") -> LimitState | None:
        """The limit, or the key of it that somebody has changed or a handler holds back; or None."""
        return next((state for state in self._app.store.limits() if (state.name, state.key) == (name, key)), None)

    def set(
        self,
        name: str,
        *,
        key: str = "",
        concurrency: int | None = None,
        rate: Rate | None = None,
        by: str | None = None,
    ) -> LimitState:
        """Change a limit for one key, or for all that have no change of their own. It wins over the code until `unset`.

        `name`: of a Limit, or `type:NAME` for all jobs of a type. What you leave out stays as it is. No claim that
        begins after this returns goes by the old one, and what runs goes on. `by`: as with `pause`. Raises
        UnknownLimit.
        """
        checked_bounds(concurrency, rate)
        known = self._known()
        if checked_limit_name(name) not in known:
            raise UnknownLimit(name, known)
        if checked_name("key", key) and known[name] is None:
            raise BadOption("key", key, f"limit {name!r} counts all its jobs together; leave the key out")
        change = LimitChange(name=name, key=key, concurrency=concurrency, rate=rate, by=who(by))
        return self._app._waking(self._app.store.change_limit(change))

    def unset(self, name: str, *, key: str = "") -> bool:
        """Go by the code again, and let a key go that RateLimited holds back. False if there was nothing to do."""
        return self._app._waking(self._app.store.unset_limit(checked_limit_name(name), checked_name("key", key)))

    def _known(self) -> dict[str, str | None]:
        """The limits that workers have published or this app declares, and what each is counted by."""
        own = (job_type.policy for job_type in self._app.registry.types.values())
        policies = [*self._app.store.policies().values(), *own]
        declared = [limit for policy in policies for limit in decode_as(policy.limits, tuple[Limit, ...]) or ()]
        return {f"{OF_TYPE}{policy.type}": None for policy in policies} | {one.name: one.per for one in declared}

    alist = twin(list)
    aget = twin(get)
    aset = twin(set)
    aunset = twin(unset)
