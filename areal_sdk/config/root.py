"""`Config`: all sections of a run together, and the conditions between sections."""

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from areal_sdk.config.keys import join_key
from areal_sdk.config.machine import bfloat16_is_slow, computes_on_cpu, threads_for
from areal_sdk.config.sections.base import ENDLESS, JSON, Section
from areal_sdk.config.sections.learning import (
    AlgorithmSection,
    FinetuneSection,
    PolicySection,
    SftSection,
    TrainerSection,
)
from areal_sdk.config.sections.playing import (
    NO_EVALUATION,
    CurriculumSection,
    EvalSection,
    MixtureSection,
    RolloutSection,
    RunSection,
)
from areal_sdk.config.sections.services import ClusterSection, EngineSection, GatewaySection
from areal_sdk.config.sections.serving import ServeSection


class Config(Section):
    """Everything a run needs."""

    agent: str = ""
    """`file.py`, `file.py::Name`, `package.module:Name`, or a plugin's name."""
    model: str = "smollm2"
    """A directory, a hub id, `smollm2` or `tiny`."""
    tasks: str | None = None
    """A file (JSONL, JSON, CSV, Parquet), a directory that `datasets` saved or reads, the id of a dataset on the
    hub (`openai/gsm8k:main`), or a plugin's dataset, whose options are in `[tasks.NAME]`; default: `tasks(split)` of the agent's file."""
    eval_tasks: Annotated[str | None, NO_EVALUATION] = None
    """Source of held-out tasks, as the setting `tasks`. A plugin's dataset in `tasks` has held-out splits of its own.
    With a file in `tasks`, nothing is measured without `eval_tasks`."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Fields of a file of tasks under other names: `question = "problem"` reads `task.data["question"]` from
    the column `problem`; `id` names the column of ids."""
    mixture: tuple[MixtureSection, ...] = ()
    """Sources of tasks that are played in a proportion, each a `[[mixture]]`, instead of `tasks`."""
    policy: dict[str, PolicySection] = Field(default_factory=dict)
    """Policies of a run with several, each a table `[policy.NAME]`. They need the package areal-sdk-policies."""
    curriculum: CurriculumSection = CurriculumSection()
    rewards: dict[str, float] = Field(default_factory=dict)
    """Reward functions and their weights; empty: the agent's own verdict."""
    observers: tuple[str, ...] = ()
    """Observers of the run, such as trackers of metrics. Naming the table `[observer.NAME]` selects one too."""
    env: str | None = None
    """An environment to play, instead of an agent."""
    command: str | None = None
    """A command in any language that plays one episode, instead of an agent: `node agent.js`."""
    plugins: tuple[str, ...] = ()
    """Python files to load as plugins, in addition to installed plugins."""
    init_from: str | None = None
    """A run, finished or not, whose best (or last) weights to start from. Or one checkpoint of a run."""
    run: RunSection = RunSection()
    engine: EngineSection = EngineSection()
    rollout: RolloutSection = RolloutSection()
    trainer: TrainerSection = TrainerSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    sft: SftSection = SftSection()
    finetune: FinetuneSection = FinetuneSection()
    eval: EvalSection = EvalSection()
    cluster: ClusterSection = ClusterSection()
    gateway: GatewaySection = GatewaySection()
    serve: ServeSection = ServeSection()
    options: dict[str, JSON] = Field(default_factory=dict)
    """Options of the agent and of plugins: `[options.agent]`, `[options."reward.NAME"]`,
    `[options."env.NAME"]`, `[options."tasks.NAME"]`, `[options."observer.NAME"]`. They are checked against the declared parameters."""

    @model_validator(mode="before")
    @classmethod
    def _imply(cls, values: Any) -> Any:
        """Fill in the defaults for this device, for live callers, and for `deterministic`: no staleness."""
        values = _for_this_device(values)
        if _section(values, "serve").get("learn") is True:
            values = _for_live_callers(values)
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
        for _, section in self.walk():
            for refusal in section.contradictions(self):
                raise ValueError(refusal)
        return self

    def contradictions(self, run: "Config") -> Iterator[str]:
        """Refusals of policies and mixtures. Each section has refusals of its own."""
        if self.policy and all(policy.frozen is not None for policy in self.policy.values()):
            yield "every [policy.NAME] is frozen: leave `frozen` out where a policy shall learn"
        if self.policy and self.cluster.places:
            yield "[policy.NAME] and a launcher of other machines exclude each other: leave one of the two out"
        for name in self.policy:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
                yield f"[policy.{name!r}]: a name has letters, digits, '_', '-' and '.' and begins with one of the first two"
        if self.mixture and self.tasks is not None:
            yield (
                f"tasks = {self.tasks!r} and [[mixture]] exclude each other: make the tasks one more [[mixture]], or remove tasks"
            )
        if self.mixture and self.rollout.epochs is not None:
            yield (
                f"rollout.epochs = {self.rollout.epochs}: a mixture has no end, so set run.steps instead"
            )
        names = [part.label for part in self.mixture]
        if twice := {name for name in names if names.count(name) > 1}:
            yield f"two parts of the mixture are called {min(twice)!r}: give one a name"
        for inner, outer in itertools.product(names, names):
            if inner.startswith(f"{outer}/"):
                yield (
                    f"two parts of the mixture are called {outer!r} and {inner!r}: the ids of their tasks "
                    f"begin alike, so tasks of one would count as the other's; give one a name such as "
                    f"{inner.replace('/', '-')!r}"
                )

    def remarks(self, run: "Config") -> Iterator[str]:
        """Yield a warning for each setting in `fields` that has no effect, because each file of the mixture has its own
        `fields`, or because the mixture has no file."""
        if not self.mixture or self.eval_tasks is not None:
            return
        sources = [
            source
            for part in self.mixture
            for source in (part.tasks, part.eval_tasks)
            if source is not None and not part.fields
        ]
        if any(_may_be_file(source) for source in sources):
            return
        for key, value in self.fields.items():
            yield (
                f"{join_key('fields', key)} = {value!r} changes nothing: no file of the mixture is without fields of its "
                f"own; set {key} in the fields of its [[mixture]]"
            )


def _may_be_file(source: str) -> bool:
    """Whether a source may be a file or the id of a dataset on the hub, rather than the name of a plugin's dataset."""
    return "/" in source or bool(Path(source).suffix) or Path(source).exists()


def _for_this_device(values: Any) -> Any:
    """The values, with defaults for the parts that compute on this machine: float32 where its device has no instructions
    for bfloat16, and a share of its cores."""
    if not isinstance(values, Mapping):
        return values
    if _section(values, "cluster").get("launcher", "local") != "local":
        return values  # other machines compute
    ranks = _section(values, "trainer").get("ranks", 1)
    threads = 1  # which repeats bit for bit
    if isinstance(ranks, int) and ranks > 0 and not _section(values, "run").get("deterministic"):
        threads = threads_for((1 + ranks) * max(1, len(_section(values, "policy"))))
    implied = {}
    for part, own, key in (("trainer", "fsdp", "precision"), ("engine", "local", "dtype")):
        given = values.get(part, {})
        if not isinstance(given, Mapping) or given.get("name", own) != own:
            continue
        device = str(given.get("device", "auto"))
        implied[part] = {"threads": threads, **given} if computes_on_cpu(device) else dict(given)
        if given.get(key, "auto") == "auto" and bfloat16_is_slow(device):
            implied[part][key] = "float32"
    return {**values, **implied}


def _for_live_callers(values: Any) -> JSON:
    """Defaults of `serve.learn`: callers come alone, keep coming, and cannot be waited for."""
    run, rollout = _section(values, "run"), _section(values, "rollout")
    algorithm = _section(values, "algorithm")
    run.setdefault("steps", ENDLESS)
    run.setdefault("max_empty_batches", ENDLESS)
    rollout.setdefault("stale", "drop")
    if rollout.setdefault("group_size", 1) == 1:
        algorithm.setdefault("name", "running_baseline")
    return {**values, "run": run, "rollout": rollout, "algorithm": algorithm}


def _section(values: Any, name: str) -> JSON:
    """A copy of the table `name` of `values`; empty if it is missing, or no table."""
    section = values.get(name) if isinstance(values, Mapping) else None
    return dict(section) if isinstance(section, Mapping) else {}
