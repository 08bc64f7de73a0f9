"""Sections about serving and places: the gateway, quotas, `areal-sdk serve`, the machines of a run."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from areal_sdk.config.sections.base import IdleIf, Port, Positive, Seconds, Section

if TYPE_CHECKING:
    from areal_sdk.config.root import Config


class GatewaySection(Section):
    """The OpenAI-compatible endpoint."""

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` accepts calls from other machines."""
    port: Annotated[
        Port,
        IdleIf(
            lambda run: run.rollout.nodes > 1,
            "each rollout node has a gateway, and takes a free port (rollout.nodes)",
        ),
    ] = 0
    """Port to listen on; 0: any free port."""
    admin_key: str | None = Field(default=None, repr=False)
    """The gateway's admin key; default: made up at start-up. It is never stored in the run."""
    tool_format: str | None = None
    """Format of the model's tool calls: `hermes`, `qwen_coder`, `glm`, `llama`, `mistral`, `deepseek`, `plain`, or a
    plugin's. Default: the format of its chat template."""
    unknown_fields: Literal["refuse", "note"] = "refuse"
    """Fields of a request that the gateway cannot honour: `refuse` the request with a 400, or leave the
    field out and `note` it in the session."""


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
    """Each name with the weights of the policies that share it. The name of one is short for that one alone."""
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
    """Further names of the policies `[policy.NAME]`: `gpt-4 = "trained"`, or several with their weights, of which each
    session gets one for good: `shop = { base = 1, trained = 1 }`. `"*"` stands for all other names."""
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
        """Whether there is a run directory."""
        return self.learn or self.record or self.upstream is not None


_PLACED_BY_NONE = IdleIf(
    lambda run: not run.cluster.places,
    'no cluster places the processes (cluster.launcher = "ray" asks one)',
)
_ALL_HERE = IdleIf(
    lambda run: run.cluster.launcher == "local",
    'every process is on this machine (cluster.launcher = "local")',
)


class ClusterSection(Section):
    """The machines of a run. The main process stays where `areal-sdk` was started."""

    launcher: str = "local"
    """`local`: every process on this machine. `torchrun`: you start the trainer ranks, on any machine that has the run
    directory and the model at the same paths. `ray`: trainer ranks, engine and rollout nodes wherever a Ray cluster has
    room. Or a plugin's launcher, with options in `[cluster.NAME]`."""
    address: Annotated[str, _PLACED_BY_NONE] = "auto"
    """Address of the Ray cluster, `HOST:PORT`; `auto`: the cluster that this machine belongs to."""
    placement_timeout_s: Annotated[Seconds, _PLACED_BY_NONE] = 120.0
    """Seconds to wait for processors that other jobs of the cluster hold. A lack of processors in
    the whole cluster is an error at once."""
    listen_host: Annotated[str, _ALL_HERE] = ""
    """Address of this machine to which processes elsewhere connect. Default: `127.0.0.1` under torchrun, this
    machine's address in the cluster under Ray."""
    listen_port: Annotated[Port, _ALL_HERE] = 0
    """Port to which processes elsewhere connect; 0: any free port."""

    @property
    def places(self) -> bool:
        """The launcher places every process of the run, perhaps on other machines."""
        return self.launcher not in ("local", "torchrun")
