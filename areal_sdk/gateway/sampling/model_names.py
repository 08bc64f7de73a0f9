"""The names by which requests ask for a policy: its own, another name for it, or a name that several share."""

from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b

from areal_sdk.gateway.errors import ApiError

ANY = "*"
"""Stands for every name that is not served by itself."""

Arms = Mapping[str, float]
"""Policies that share a name, each with its weight."""


class ModelNames:
    """Finds the policy of a request. In a run without `[policy.NAME]` the name of a model chooses nothing.

    >>> names = ModelNames(lambda: ["base", "trained"], {"gpt-4": {"base": 1}, "shop": {"base": 1, "trained": 1}})
    >>> [names.policy_of(name, "alice/monday") for name in ("trained", "gpt-4", "other")]
    ['trained', 'base', 'other']
    >>> arms = [names.policy_of("shop", f"alice/{number}") for number in range(1000)]
    >>> 450 < arms.count("base") < 550
    True
    """

    def __init__(
        self, policies: Callable[[], Collection[str]], shared: Mapping[str, Arms] | None = None
    ) -> None:
        """`policies` are those of the engine, once it has started."""
        self._policies = policies
        self._shared = shared or {}

    def policy_of(self, model: str | None, session_id: str) -> str:
        """The policy that a request of a session names; empty in a run without `[policy.NAME]`."""
        name, policies = model or "", self._policies()
        if not policies or name in policies:
            return name if policies else ""
        for known in (name, ANY):
            if (arms := self._shared.get(known)) is not None:
                return arm_of(known, arms, session_id)
        return name

    def listed(self) -> Iterable[str]:
        """The names that a request may give; none in a run without policies."""
        policies = self._policies()
        return [*policies, *(n for n in self._shared if n != ANY)] if policies else ()

    def check(self, policy: str) -> None:
        """Refuse a request for an unknown policy: no other may answer in its place."""
        if policy in (self._policies() or ("",)):
            return
        known = ", ".join(self.listed()) or "none, since the run has no [policy.NAME]"
        raise ApiError(
            404,
            f"The model {policy!r} does not exist. Known policies: {known}",
            param="model",
            code="model_not_found",
            retry=False,
        )


def arm_of(name: str, arms: Arms, session_id: str) -> str:
    """The arm of a session: always the same one, in every process, without a memory of it."""
    digest = blake2b(f"{name}\0{session_id}".encode(errors="surrogatepass"), digest_size=8).digest()
    point = int.from_bytes(digest) / 2**64 * sum(arms.values())
    for arm, weight in arms.items():
        point -= weight
        if point < 0.0:
            return arm
    return next(reversed([*arms]))  # rounding
