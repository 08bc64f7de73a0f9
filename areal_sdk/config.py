"""A run's settings: one model per TOML section, defaults that are the recommendation.

Precedence, low to high: defaults, `--config run.toml`, `--set a.b=c`, a command's own flags.
An unknown key is an error that names the nearest known one.
"""

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from areal_sdk.errors import ConfigError

JSON = dict[str, Any]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
REMOVED = "(removed)"
"""What run directories store in the place of a secret."""

Seconds = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class RunSection(Section):
    """Where the run lives and when it ends."""

    dir: Path = Path("runs")
    """Run directories are made in here."""
    name: str | None = None
    """Directory name; default: agent and time."""
    seed: NonNegative = 0
    steps: Positive = 100
    """Optimiser steps to take."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop after this much training time, whatever the step."""
    deterministic: bool = False
    """Bit-identical losses from run to run and across resume; implies `max_staleness = 0`."""
    checkpoint_every: NonNegative = 20
    """Steps between checkpoints; 0 keeps only the one at the end."""
    keep_checkpoints: Positive = 2
    max_empty_batches: Positive = 10
    """Batches in a row without a gradient before the run ends as solved or hopeless."""


class EngineSection(Section):
    """Who samples tokens."""

    name: str = "local"
    """`local`, `sglang`, a plugin's engine, or the address of running servers."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    max_slots: Positive = 32
    """Requests decoded together."""
    max_context: Positive | None = None
    """Prompt and output, in tokens; default: what the model was made for, at most 4096."""
    kv_on_update: Literal["recompute", "keep"] = "recompute"
    """What becomes of requests in flight when the weights change."""
    threads: Positive = 1


class RolloutSection(Section):
    """How episodes are played and which of them may be trained."""

    batch: Positive = 32
    """Episodes a step; a multiple of `group_size`."""
    group_size: Positive = 8
    """Attempts at each task; their rewards are compared with one another."""
    max_staleness: NonNegative = 2
    """Updates a trained token may lag behind (eta)."""
    max_inflight: Positive = 64
    """Episodes that run at the same time."""
    stale: Literal["wait", "drop", "mask"] = "wait"
    """What to do with samples about to be too old."""
    wait_s: Seconds = 30.0
    """How long the trainer waits for them under `stale = "wait"`."""
    sampling: Literal["override", "respect"] = "override"
    """`override`: train on T = `temperature` whatever the client asked; `respect`: the client's
    own sampling, and turns whose distribution is not a plain softmax are not trained."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    max_new_tokens: Positive = 256
    """Tokens a turn, unless the client asks for fewer."""
    max_turns: Positive = 32
    max_episode_tokens: Positive | None = None
    """Sampled tokens an episode may spend."""
    episode_timeout_s: Seconds = 600.0
    request_timeout_s: Seconds = 300.0
    tool_timeout_s: Seconds = 60.0
    """Deadline of one step of an environment."""
    reward_timeout_s: Seconds = 30.0
    infra_retries: NonNegative = 2
    """Times an episode is tried again after an infrastructure fault."""
    truncated: Literal["score", "mask", "drop"] = "score"
    """Episodes that ran into a turn, token or context limit."""
    incomplete_groups: Literal["train", "drop"] = "train"
    """Groups with failed members: train the valid ones (at least two), or drop them all."""
    on_agent_error: Literal["drop"] | float = "drop"
    """An exception in the agent: drop the episode, or this reward."""
    dynamic_sampling: bool = False
    """Refill batches in place of groups whose rewards are all equal."""
    shuffle: bool = True
    epochs: Positive | None = None
    """Passes over the tasks; default: as many as the steps need."""


class TrainerSection(Section):
    """The optimiser and where it runs."""

    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    warmup_steps: NonNegative = 5
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the matrix products; master weights are always float32."""
    num_minibatches: Positive = 1
    """Optimiser steps a batch is split into."""
    tokens_per_microbatch: Positive = 4096
    share_prompts: bool = True
    """Compute what the members of a group have in common once."""
    ranks: Positive = 1
    launcher: Literal["local", "torchrun"] = "local"
    """`local`: ranks are our child processes; `torchrun`: you start them, on any machine."""
    listen_host: str = "127.0.0.1"
    """Where ranks under torchrun connect to."""
    listen_port: NonNegative = 0
    device: str = "auto"
    threads: Positive = 1
    step_timeout_s: Seconds = 1800.0


class AlgorithmSection(Section):
    """The objective."""

    name: str = "grpo"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    max_weight: Annotated[float, Field(gt=0)] = 5.0
    """Bound of the weight between the sampler and the policy at the start of the step."""
    proximal: Literal["recompute", "interpolate"] = "recompute"
    """Where the trust region's centre comes from when there are several minibatches."""


class SftSection(Section):
    """Warm-up on demonstrations before reinforcement learning."""

    demonstrations: str | None = None
    """A JSONL file of `{"messages": [...]}`; an agent file may define `demonstrations()` instead."""
    steps: NonNegative = 0
    batch: Positive = 32
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3


class EvalSection(Section):
    """Held-out measurements."""

    every: NonNegative = 0
    """Steps between evaluations during training; 0: only before and after."""
    before: bool = True
    after: bool = True
    tasks: Positive = 100
    """At most this many tasks of each split."""
    samples: Positive = 1
    """Attempts a task."""
    temperature: Annotated[float, Field(ge=0, le=10)] = 0.0
    max_concurrency: Positive = 32
    splits: tuple[str, ...] = ("eval",)
    keep_best: bool = True
    """Export the best weights seen at an evaluation to `checkpoints/best`."""
    stop_at_success: Annotated[float, Field(gt=0, le=1)] | None = None
    """Stop once an evaluation reaches this."""


class GatewaySection(Section):
    """The OpenAI-compatible endpoint."""

    host: str = "127.0.0.1"
    port: NonNegative = 0
    """0: any free port."""
    admin_key: str | None = Field(default=None, repr=False)
    """Generated at start-up when not given; never written to the run directory."""


class Config(Section):
    """Everything a run needs."""

    agent: str = ""
    """`file.py`, `file.py::Name`, `package.module:Name`, or a plugin's name."""
    model: str = "smollm2"
    """A directory, a hub id, `smollm2`, or `tiny`."""
    tasks: str | None = None
    """A JSONL file or a plugin's dataset; default: the agent file's own `tasks(split)`."""
    eval_tasks: str | None = None
    rewards: dict[str, float] = Field(default_factory=dict)
    """Reward names and weights; empty: the agent's own verdict."""
    env: str | None = None
    """An environment to play, in place of an agent."""
    init_from: str | None = None
    """A run directory whose best (or last) weights to start from."""
    run: RunSection = RunSection()
    engine: EngineSection = EngineSection()
    rollout: RolloutSection = RolloutSection()
    trainer: TrainerSection = TrainerSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    sft: SftSection = SftSection()
    eval: EvalSection = EvalSection()
    gateway: GatewaySection = GatewaySection()
    options: dict[str, JSON] = Field(default_factory=dict)
    """Options of the agent and of plugins: `[options.agent]`, `[options."reward.NAME"]`,
    `[options."env.NAME"]`; checked against what they declare."""

    @model_validator(mode="before")
    @classmethod
    def _imply(cls, values: Any) -> Any:
        """`deterministic` implies on-policy batches; asking for both is a contradiction."""
        run, rollout = _section(values, "run"), _section(values, "rollout")
        if not run.get("deterministic"):
            return values
        if rollout.setdefault("max_staleness", 0) != 0:
            raise ValueError(
                "run.deterministic needs rollout.max_staleness = 0: remove one of the two"
            )
        return {**values, "rollout": rollout}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        rollout = self.rollout
        if rollout.batch % rollout.group_size:
            lower = max(1, rollout.batch // rollout.group_size) * rollout.group_size
            raise ValueError(
                f"rollout.batch = {rollout.batch} is not a multiple of rollout.group_size = "
                f"{rollout.group_size}: try {lower}"
            )
        if rollout.max_inflight < rollout.group_size:
            raise ValueError(
                f"rollout.max_inflight = {rollout.max_inflight} cannot hold one group of "
                f"{rollout.group_size}: raise it to at least {rollout.group_size}"
            )
        if self.eval.stop_at_success is not None and not self.eval.every:
            raise ValueError(
                "eval.stop_at_success needs evaluations during training: set eval.every"
            )
        return self


def _section(values: Any, name: str) -> JSON:
    """A copy of a table of `values`; empty where there is none, or no table."""
    section = values.get(name) if isinstance(values, Mapping) else None
    return dict(section) if isinstance(section, Mapping) else {}


_NAMED_TABLES = ("agent", "env")
"""Keys that are a name, or a table of options with the name inside."""


def load_config(
    *,
    file: Path | None = None,
    settings: Iterable[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Merge a TOML file, `a.b=c` settings and a command's flags (dotted keys) over the defaults."""
    values: JSON = read_toml(file) if file else {}
    for setting in settings:
        key, separator, raw = setting.partition("=")
        if not separator:
            raise ConfigError(f"--set {setting!r}: write it as section.key=value")
        _assign(values, key.strip(), _parse_value(raw))
    for key, value in (overrides or {}).items():
        _assign(values, key, value)
    return parse_config(values)


def parse_config(values: Mapping[str, Any]) -> Config:
    gathered = _gather_options(dict(values))
    _refuse_lost_secrets(gathered)
    try:
        return Config.model_validate(gathered)
    except ValidationError as exc:
        raise ConfigError(explain(exc, Config)) from None


def read_toml(path: Path) -> JSON:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"no such config file: {path}") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not valid TOML: {exc}") from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line for the first problem: the field, the value, and the way out."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = known_keys(model)
        near = difflib.get_close_matches(where, known, n=1) or [
            key for key in known if key.endswith(f".{first['loc'][-1]}")
        ]
        hint = f": did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
        return f"unknown setting {where!r}{hint}"
    message = first["msg"].removeprefix("Value error, ")
    if not where:
        return message
    return f"{where} = {first['input']!r}: {message[0].lower()}{message[1:]}"


def known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted key a model accepts."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            keys += known_keys(annotation, f"{prefix}{name}.")
        else:
            keys.append(f"{prefix}{name}")
    return keys


def _refuse_lost_secrets(values: JSON) -> None:
    """A run directory does not store secrets; what it stores instead must not become one."""
    gateway = values.get("gateway")
    if isinstance(gateway, dict) and gateway.get("admin_key") == REMOVED:
        del gateway["admin_key"]  # a new one is made up
    for key, value in _leaves(values):
        if isinstance(value, str) and REMOVED in value:
            key = key.removeprefix("options.")
            raise ConfigError(
                f"{key} is a secret, and run directories do not store those: "
                f"give it again, with --set {key}=..."
            )


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _parse_value(raw: str) -> Any:
    """A TOML value where it is one, else the text itself, so that quotes are optional."""
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def _assign(values: JSON, key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    for depth, parent in enumerate(parents):
        inner = values.setdefault(parent, {})
        if isinstance(inner, str) and not depth and parent in _NAMED_TABLES:
            inner = values[parent] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"cannot set {key!r}: {parent!r} is a value, not a section")
        values = inner
    if not parents and leaf in _NAMED_TABLES and isinstance(values.get(leaf), dict):
        values[leaf]["name"] = value  # the options stay, whichever came first
    else:
        values[leaf] = value


def _gather_options(values: JSON) -> JSON:
    """Accept `[reward.NAME]`, `[env.NAME]`, `[engine.NAME]` and `[agent]` tables as `options`.

    A reward's `weight` is ours, the rest is the plugin's. Naming a reward's table selects it.
    """
    options = {name: dict(table) for name, table in values.pop("options", {}).items()}
    rewards = dict(values.get("rewards", {}))
    given = values.pop("reward", {})
    if not isinstance(given, Mapping) or not all(isinstance(t, Mapping) for t in given.values()):
        raise ConfigError(f"reward = {given!r}: write [reward.NAME] weight = 1.0")
    for name, table in given.items():
        table = dict(table)
        rewards[name] = table.pop("weight", rewards.get(name, 1.0))
        options[f"reward.{name}"] = options.get(f"reward.{name}", {}) | table
    env = values.get("env")
    if isinstance(env, dict):
        name = env.pop("name", None) or (next(iter(env)) if len(env) == 1 else None)
        if name is None:
            raise ConfigError('name the environment to play: [env] name = "..."')
        options.update({f"env.{key}": dict(table) for key, table in env.items()})
        values["env"] = name
    engine = values.get("engine")
    if isinstance(engine, dict):  # [engine.sglang] and the like belong to that engine
        values["engine"] = {k: v for k, v in engine.items() if not isinstance(v, dict)}
        for key, table in engine.items():
            if isinstance(table, dict):
                options[f"engine.{key}"] = options.get(f"engine.{key}", {}) | table
    agent = values.get("agent")
    if isinstance(agent, dict):
        agent = dict(agent)
        values["agent"] = agent.pop("name", "")
        options["agent"] = options.get("agent", {}) | agent
    return {**values, "rewards": rewards, "options": options}
