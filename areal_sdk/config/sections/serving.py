"""Sections about serving: quotas, and `areal-sdk serve` with its callers."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from areal_sdk.config.sections.base import Positive, Seconds, Section

if TYPE_CHECKING:
    from areal_sdk.config.root import Config


class Quota(Section):
    """The quota of one user. A request over the quota gets a 429 with the time to wait."""

    requests_per_minute: Positive | None = None
    """Requests per minute of each user. A request over a quota gets a 429 with the time to wait."""
    tokens_per_minute: Positive | None = None
    """Sampled tokens per minute of each user."""
    max_running: Positive | None = None
    """Requests of each user that run at the same time."""
    max_sessions: Positive = 10_000
    """Open sessions of each user. The same number of ended sessions may wait for their reward."""


def _arms(models: Any) -> Any:
    """Each name with its policies and their weights. A single policy's name is short for that policy with weight 1."""
    if not isinstance(models, Mapping):
        return models
    return {n: {meant: 1.0} if isinstance(meant, str) else meant for n, meant in models.items()}


class ServeSection(Quota):
    """The callers of `areal-sdk serve`, and the treatment of their sessions."""

    processes: Positive = 1
    """Gateway processes that share the address; 1: the main process serves."""
    learn: bool = False
    """Train on the sessions of callers, with the rewards that callers post."""
    record: bool = False
    """Keep every session in a run directory."""
    upstream: str | None = None
    """Pass calls on to the OpenAI-compatible provider at this address, or to a plugin's backend of this name, instead
    of serving a model."""
    users: Path | None = None
    """A TOML file of users, each with `[NAME] api_key = "..."`; default: all callers share one key."""
    keys: Path | None = None
    """A file of keys, which `areal-sdk keys` makes and revokes while the server runs."""
    models: Annotated[dict[str, dict[str, float]], BeforeValidator(_arms)] = Field(
        default_factory=dict
    )
    """Further names of the policies `[policy.NAME]`: `gpt-4 = "trained"`. A name may stand for several policies with
    weights, `shop = { base = 1, trained = 1 }`: each session keeps one of them. `"*"` stands for all other names."""
    idle_s: Seconds = 600.0
    """A session ends after this time without a request."""
    reward_wait_s: Seconds = 600.0
    """Time after the end of a session in which a reward may still come. A session without a reward is not trained."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may call; `*` for all."""

    def contradictions(self, run: "Config") -> Iterator[str]:
        if self.learn and self.upstream is not None:
            yield (
                "serve.learn needs tokens, and another provider (serve.upstream) gives only text: "
                "remove one of the two"
            )
        if self.models and self.upstream is not None:
            yield "serve.models names policies, and another provider (serve.upstream) answers: remove one of the two"
        for name, arms in self.models.items():
            if not arms or not all(0.0 < weight < math.inf for weight in arms.values()):
                yield f"serve.models: {name!r} needs policies with weights above 0, as in {{ base = 1, trained = 1 }}"
            if unknown := [arm for arm in arms if arm not in run.policy]:
                known = ", ".join(run.policy) or "none: give each model a table [policy.NAME]"
                yield f"serve.models: {name!r} means {unknown[0]!r}, which is no policy; known: {known}"
            if name in run.policy:
                yield f"serve.models: {name!r} is a policy already: take another name"
        if self.learn and run.rollout.nodes > 1:
            yield (
                f"rollout.nodes = {run.rollout.nodes}: nodes play tasks, and callers of serve.learn bring theirs: "
                "leave rollout.nodes out, and set serve.processes for more gateway processes"
            )
        if self.upstream is not None and self.processes > 1:
            yield (
                f"serve.processes = {self.processes}: calls are passed on to another provider "
                "(serve.upstream) by one process: leave serve.processes out"
            )
        if self.learn and run.run.deterministic:
            yield (
                "run.deterministic does not work with serve.learn, where callers decide which episodes "
                "are played: remove one of the two"
            )

    @property
    def keeps_sessions(self) -> bool:
        """Whether the server keeps the sessions, in a run directory."""
        return self.learn or self.record or self.upstream is not None
