"""Finds settings that were given but change nothing in this run, or hardly anything, with the reason.

A value that equals the default surprises nobody, so it gets no remark. So a file with all settings, such
as `--dry-run` prints, gets no remark either.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from areal_sdk.config.keys import join_key
from areal_sdk.config.machine import bfloat16_is_slow
from areal_sdk.config.root import Config
from areal_sdk.config.sections.learning import ADAPTER_LEARNING_RATE


@dataclass(frozen=True, slots=True)
class _Rule:
    """`keys` do nothing where `is_idle`."""

    keys: tuple[str, ...]
    is_idle: Callable[[Config], bool]
    why: str


_RULES = (
    _Rule(
        ("cluster.listen_host", "cluster.listen_port"),
        lambda c: c.cluster.launcher == "local",
        'every process is on this machine (cluster.launcher = "local")',
    ),
    _Rule(
        ("cluster.address", "cluster.placement_timeout_s"),
        lambda c: not c.cluster.places,
        'no cluster places the processes (cluster.launcher = "ray" asks one)',
    ),
    _Rule(
        ("trainer.lora.alpha", "trainer.lora.dropout", "trainer.lora.targets"),
        lambda c: not c.trainer.lora.rank,
        "there is no adapter without trainer.lora.rank",
    ),
    _Rule(
        ("trainer.defer_gradient_sync",),
        lambda c: c.trainer.ranks == 1,
        "one rank has nobody to sum gradients with (trainer.ranks)",
    ),
    _Rule(
        ("trainer.min_ranks",),
        lambda c: c.finetune.objective is not None,
        "a run that learns from data keeps its number of ranks",
    ),
    _Rule(
        ("trainer.trust_region",),
        lambda c: c.finetune.objective is not None,
        "only updates from episodes are held; a run that learns from data keeps its learning rate",
    ),
    _Rule(
        ("trainer.schedule_end",),
        lambda c: c.trainer.schedule == "constant",
        'the learning rate does not fall (trainer.schedule = "constant")',
    ),
    _Rule(
        ("trainer.decay_share",),
        lambda c: c.trainer.schedule != "wsd",
        'only trainer.schedule = "wsd" falls in the last steps alone',
    ),
    _Rule(
        ("sft.demonstrations", "sft.batch", "sft.learning_rate"),
        lambda c: not c.sft.steps,
        "there is no warm-up without sft.steps",
    ),
    _Rule(
        (
            "finetune.data",
            "finetune.eval_data",
            "finetune.epochs",
            "finetune.batch",
            "finetune.max_tokens",
        ),
        lambda c: c.finetune.objective is None,
        "a run that plays episodes learns from them (areal-sdk sft, dpo, reward-model, distill)",
    ),
    _Rule(
        ("finetune.beta", "finetune.length_normalised"),
        lambda c: c.finetune.objective != "dpo",
        'only dpo reads them (finetune.objective = "dpo")',
    ),
    _Rule(
        ("finetune.min_reward", "finetune.per_task"),
        lambda c: c.finetune.objective != "sft",
        "only what is imitated is selected; pairs are the best against the worst of a group",
    ),
    _Rule(
        ("run.guard",),
        lambda c: c.finetune.objective is not None,
        "only runs that play episodes are guarded; the held-out loss tells of data (finetune.eval_data)",
    ),
    _Rule(
        ("rollout.nodes",),
        lambda c: c.finetune.objective is not None,
        "only agents' episodes are played by rollout nodes",
    ),
    _Rule(
        ("rollout.isolated_memory_mb",),
        lambda c: not any(options.get("isolated") for options in c.options.values()),
        "no reward and no environment is isolated",
    ),
    _Rule(
        ("gateway.port",),
        lambda c: c.rollout.nodes > 1,
        "each rollout node has a gateway, and takes a free port (rollout.nodes)",
    ),
    _Rule(
        ("curriculum.floor", "curriculum.every"),
        lambda c: c.curriculum.target is None,
        "the shares of a mixture stay as they are without curriculum.target",
    ),
    _Rule(
        ("rollout.wait_s",),
        lambda c: c.rollout.stale != "wait",
        'nothing is waited for unless rollout.stale = "wait"',
    ),
    _Rule(
        (
            "eval_tasks",
            "eval.tasks",
            "eval.samples",
            "eval.temperature",
            "eval.max_concurrency",
            "eval.splits",
        ),
        lambda c: not (c.eval.before or c.eval.after or c.eval.every),
        "nothing is measured: eval.before, eval.after and eval.every are off",
    ),
)


def idle_settings(config: Config, *, engine: str) -> list[str]:
    """One line for each setting that was given, and by which training with `config` changes nothing or little.

    `engine` is the registered engine that `engine.name` means.
    """
    lines = [
        f"{key} = {_value(config, key)!r} changes nothing: {rule.why}"
        for rule in _RULES
        if rule.is_idle(config)
        for key in rule.keys
        if _value(config, key) != _value(_DEFAULTS, key)
    ]
    idle_options = (*_idle_clipping(config), *_idle_overlong(config), *_idle_fields(config))
    slow = (*_slow_adapter(config), *_slow_types(config))
    return [*lines, *_unled_rate(config), *slow, *idle_options, *_idle_tables(config, engine)]


def without_nodes(config: Config, why: str) -> list[str]:
    """The line that says that no rollout nodes are started, and `why`; none where none were asked for."""
    nodes = config.rollout.nodes
    return [f"rollout.nodes = {nodes} changes nothing: {why}"] if nodes > 1 else []


def _unled_rate(config: Config) -> Iterator[str]:
    """A learning rate that would follow the trust region, where there is none."""
    section = config.trainer
    follows = section.learning_rate == "auto" and config.finetune.objective is None
    if follows and not section.trust_region:
        yield (
            'trainer.learning_rate = "auto" follows nothing where trainer.trust_region = 0: it stays '
            f"{section.first_learning_rate:g}: leave trust_region out, or set a rate"
        )


def _slow_adapter(config: Config) -> Iterator[str]:
    """A learning rate that was meant for all weights."""
    rate = config.trainer.first_learning_rate
    if config.trainer.lora.rank and rate < ADAPTER_LEARNING_RATE / 4:
        yield (
            f"trainer.learning_rate = {rate:g} changes little: an adapter (trainer.lora) usually needs about "
            f"ten times the rate of all weights: try {10 * rate:g}, or leave it out for "
            f"{ADAPTER_LEARNING_RATE:g}"
        )


def _slow_types(config: Config) -> Iterator[str]:
    """bfloat16 where this machine's CPU would rather compute in float32."""
    is_here = config.cluster.launcher == "local" and bfloat16_is_slow(config.trainer.device)
    if is_here and config.trainer.precision == "bfloat16":
        yield (
            'trainer.precision = "bfloat16" takes at least four times as long as float32: this CPU has no '
            "instructions for it: leave it out"
        )


def _idle_clipping(config: Config) -> Iterator[str]:
    """Options of the trust region, where nothing ever leaves it."""
    name = config.algorithm.name
    if name not in _CENTRED_ON_THE_STEP or config.trainer.num_minibatches > 1:
        return
    for key, value in config.options.get(f"algorithm.{name}", {}).items():
        if key in _OF_LATER_MINIBATCHES:
            yield (
                f"{join_key('algorithm', name, key)} = {value!r} changes nothing: with one "
                "minibatch a step nothing is ever clipped (trainer.num_minibatches)"
            )


def _idle_overlong(config: Config) -> Iterator[str]:
    """The penalty for long answers, where no answer is too long."""
    options = config.options.get("algorithm.dapo", {})
    if config.algorithm.name != "dapo" or options.get("overlong_limit"):
        return
    for key in ("overlong_margin", "overlong_penalty"):
        if key in options:
            yield (
                f"algorithm.dapo.{key} = {options[key]!r} changes nothing: without "
                "algorithm.dapo.overlong_limit no answer is too long"
            )


def _idle_fields(config: Config) -> Iterator[str]:
    """Names of fields, where every file of a mixture has its own, or there is none."""
    if not config.mixture or config.eval_tasks is not None:
        return
    sources = [
        source
        for part in config.mixture
        for source in (part.tasks, part.eval_tasks)
        if source is not None and not part.fields
    ]
    if any(_may_be_file(source) for source in sources):
        return
    for key, value in config.fields.items():
        yield (
            f"{join_key('fields', key)} = {value!r} changes nothing: no file of the mixture is without fields of its "
            f"own; set {key} in the fields of its [[mixture]]"
        )


def _may_be_file(source: str) -> bool:
    """Whether a source may be a file or the id of a dataset on the hub, rather than the name of a
    plugin's dataset."""
    return "/" in source or bool(Path(source).suffix) or Path(source).exists()


def _idle_tables(config: Config, engine: str) -> Iterator[str]:
    """Options of an environment, an engine, a trainer, an algorithm or an agent that does not work."""
    for table, options in config.options.items():
        kind, _, name = table.partition(".")
        if not options:
            continue
        if kind == "env" and name != config.env:
            why = f"the environment played is {config.env!r}" if config.env else "no env is played"
        elif kind == "tasks" and name not in _datasets(config):
            why = f"no tasks come from a dataset {name!r}"
        elif kind == "engine" and name != engine:
            why = f"the engine is {config.engine.name!r}"
        elif kind == "trainer" and name != config.trainer.name:
            why = f"the trainer is {config.trainer.name!r}"
        elif kind == "algorithm" and name != config.algorithm.name:
            why = f"the algorithm is {config.algorithm.name!r}"
        elif kind == "cluster" and name != config.cluster.launcher:
            why = f"the launcher is {config.cluster.launcher!r}"
        elif table == "agent" and config.env is not None:
            why = f"no agent plays, but the environment {config.env!r}"
        else:
            continue
        yield f"[{join_key(kind, *([name] if name else []))}] changes nothing: {why}"


def _datasets(config: Config) -> set[str | None]:
    """The sources of tasks."""
    parts = {source for part in config.mixture for source in (part.tasks, part.eval_tasks)}
    return {config.tasks, config.eval_tasks, *parts}


def _value(config: Config, key: str) -> object:
    found: object = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


_CENTRED_ON_THE_STEP = (
    "grpo",
    "ppo",
    "drgrpo",
    "dapo",
    "gspo",
    "rloo",
    "reinforce++",
    "reinforce++_baseline",
    "cispo",
    "sapo",
    "m2po",
    "litepo",
    "areal",
    "running_baseline",
)
"""The algorithms whose ratio is 1 until the second minibatch of a step: all but `naive_ppo`."""

_OF_LATER_MINIBATCHES = (
    "clip_low",
    "clip_high",
    "dual_clip",
    "proximal",
    "tau_positive",
    "tau_negative",
    "value_clip",
)
"""Options that bound how far a policy or a value moves within one step."""

_DEFAULTS = Config()
