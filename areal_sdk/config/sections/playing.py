"""Sections about playing: the run, its tasks, episodes and evaluations."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
)

from areal_sdk.config.sections.base import (
    ENDLESS,
    JSON,
    IdleIf,
    NonNegative,
    Positive,
    Seconds,
    Section,
)

if TYPE_CHECKING:
    from areal_sdk.config.root import Config

_CREDENTIALS = re.compile(r"://[^/@]*:[^/@]*@|\?")
"""Pattern of an address with a password, or with a query, in which stores take signatures."""


def _place(mirror: str) -> str:
    if "://" not in mirror:
        return str(Path(mirror).expanduser().absolute())
    if _CREDENTIALS.search(mirror):
        raise ValueError(
            "give credentials in the variables or files that the store reads (such as AWS_ACCESS_KEY_ID), not in the address"
        )
    return mirror


def _run_name(name: str) -> str:
    if name in ("", "..") or name != Path(name).name:
        raise ValueError("a name has no slash: `areal-sdk runs` lists what lies in run.dir itself")
    return name


class RunSection(Section):
    """Settings of the run: where it lives and when it ends."""

    dir: Path = Path("runs")
    """The directory in which run directories are made."""
    name: Annotated[str, AfterValidator(_run_name)] | None = None
    """Name of the run directory; default: agent and time."""
    seed: NonNegative = 0
    """Seed of the order of tasks, of held-out samples, of `context.seed` and of what training draws at random. It repeats
    sampled tokens only with `deterministic`: otherwise they also depend on which requests come at the same time."""
    steps: Positive = 100
    """Optimiser steps to take."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop after this much training time, whatever the step."""
    deterministic: bool = False
    """Losses are bit-identical from run to run and across a resume. Implies `max_staleness = 0`."""
    checkpoint_every: NonNegative = 20
    """Steps between checkpoints; 0: only one at the end."""
    keep_checkpoints: Positive = 2
    """Number of latest checkpoints to keep; older ones are deleted."""
    keep_episodes: Annotated[float, Field(gt=0)] = 10.0
    """Gigabytes of episodes to keep on disk. Beyond that the oldest are deleted, also at the mirror, and the run says so
    once. Evaluations are counted apart, and may take as much. `inf`: all are kept."""
    keep_tokens: Annotated[float, Field(ge=0)] = 10.0
    """Gigabytes of what training made of each token, about 7 bytes a token. Beyond that the oldest steps are deleted. 0: none
    is kept."""
    restarts: NonNegative = 0
    """Number of times that a run which lost a process (a trainer rank, an engine that died too often) goes on from its
    last checkpoint by itself, or begins again if it has none. 0: the loss ends the run, and says how to go on."""
    mirror: Annotated[str, AfterValidator(_place)] | None = None
    """Place to which the run is copied while it goes on: a path on a shared file system, or an address that fsspec
    knows, such as `s3://bucket/runs/NAME`. `--resume` with this address goes on with the run on another machine."""
    guard: Annotated[
        Literal["rollback", "warn", "off"],
        IdleIf(
            lambda run: run.finetune.objective is not None,
            "only runs that play episodes are guarded; the held-out loss tells of data (finetune.eval_data)",
        ),
    ] = "rollback"
    """Answer to a policy that has clearly lost what it could do: `rollback` puts back the best
    recent weights with their optimiser, halves the bound of a step (`trainer.trust_region`), and
    ends the run at the third time. `warn` only says so."""
    stop_grace_s: Seconds = 600.0
    """Seconds after Ctrl-C or SIGTERM for the current step and the last checkpoint; at the end of a
    run, seconds for its mirror. If a batch system kills the job earlier, set the time that it
    allows. A second Ctrl-C, at least a second later, ends the run at once."""
    max_empty_batches: Positive = 10
    """The run ends after this many batches in a row without a gradient: it ends as `solved`,
    `hopeless` (nothing succeeds) or `stuck` (the attempts at each task all earn the same). It is also `solved` after as
    many batches in which 99 % of the episodes succeed and the rewards of at most a tenth of the groups differ. An episode
    that got no reward is no success."""

    @property
    def is_endless(self) -> bool:
        return self.steps >= ENDLESS

    @property
    def keep_bytes(self) -> float:
        return self.keep_episodes * 1e9

    @property
    def keep_token_bytes(self) -> float:
        return self.keep_tokens * 1e9


class MixtureSection(Section):
    """One source of tasks in a mixture."""

    tasks: str
    """Source of tasks, as the setting `tasks`: a file or a plugin's dataset."""
    eval_tasks: str | None = None
    """Source of held-out tasks, as `tasks`. A plugin's dataset has held-out splits of its own."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the source. Its share of the groups is this weight divided by the sum of all weights."""
    name: str = ""
    """Name of the source in reports; default: the name of the file or dataset."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Names of fields, as the setting `fields`, for this source; default: that setting."""
    options: JSON = Field(default_factory=dict)
    """Options of a plugin's dataset for this source, over those of `[tasks.NAME]`: two sources may be two levels of
    one dataset, each with a `name`."""

    @property
    def label(self) -> str:
        return self.name or Path(self.tasks).stem


_FIXED_SHARES = IdleIf(
    lambda run: run.curriculum.target is None,
    "the shares of a mixture stay as they are without curriculum.target",
)


class CurriculumSection(Section):
    """Shares of a mixture that follow success."""

    target: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """The success rate that teaches most, such as 0.5. A source of the mixture keeps its whole weight at this
    rate, and less the further it is away. Unset: weights stay as they are."""
    floor: Annotated[float, Field(gt=0.0, le=1.0), _FIXED_SHARES] = 0.1
    """The part of its weight that a source keeps, however far its success is from the target."""
    every: Annotated[Positive, _FIXED_SHARES] = 64
    """Number of tasks after which the shares change."""

    def contradictions(self, run: "Config") -> Iterator[str]:
        if self.target is not None and len(run.mixture) < 2:
            yield (
                f"curriculum.target = {self.target} moves the shares of a mixture: give two or more "
                "[[mixture]]; two levels of one dataset are two sources with a name and options"
            )


class RolloutSection(Section):
    """Settings of the rollout: how episodes run, and which of them may be trained."""

    batch: Positive = 32
    """Episodes per step; a multiple of `group_size`."""
    group_size: Positive = 8
    """Attempts at each task. The rewards of the attempts are compared with one another."""
    max_staleness: NonNegative = 2
    """Maximum age (eta) of a trained token, in updates of the weights."""
    max_inflight: Positive = 64
    """Maximum number of episodes that run at the same time."""
    nodes: Annotated[
        Positive,
        IdleIf(
            lambda run: run.finetune.objective is not None,
            "only agents' episodes are played by rollout nodes",
        ),
    ] = 1
    """Number of processes that play episodes, each with a gateway, agents and rewards of its own. 1: the main
    process plays them. `workers` and `reward_workers` are those of each node."""
    workers: NonNegative = 0
    """Number of processes that run agents. 0: agents run in the main process, and an agent that
    computes or blocks delays all others."""
    stale: Literal["wait", "drop", "mask"] = "wait"
    """Treatment of samples that become too old: `wait` for them up to `wait_s`, then drop them; `drop`
    them at once; `mask` the tokens that are too old, and train the others."""
    wait_s: Annotated[
        Seconds,
        IdleIf(
            lambda run: run.rollout.stale != "wait",
            'nothing is waited for unless rollout.stale = "wait"',
        ),
    ] = 30.0
    """Maximum time that the trainer waits under `stale = "wait"`."""
    sampling: Literal["override", "respect"] = "override"
    """`override`: sample at `temperature`, whatever the client asks for. `respect`: sample as the client
    asks; turns whose distribution is not a plain softmax are not trained."""
    side_calls: Literal["train", "context"] = "train"
    """Side calls are turns beside the conversation that have their own instructions and tools and are
    never continued, such as a request for a title. `train` them, or keep them as `context` only."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Temperature of sampling in training."""
    max_new_tokens: Positive = 256
    """Maximum sampled tokens per turn, unless the client asks for fewer."""
    max_turns: Positive = 32
    """Maximum answers of the model per episode."""
    max_episode_tokens: Positive | None = None
    """Maximum sampled tokens per episode; default: no limit."""
    episode_timeout_s: Seconds = 600.0
    """Deadline of an episode. An episode that takes longer has failed: it is dropped, not scored."""
    request_timeout_s: Seconds = 300.0
    """Deadline of one answer of the model."""
    tool_timeout_s: Seconds = 60.0
    """Deadline of one step of an environment, and of code that blocks one of the `workers`."""
    reward_workers: Positive = 2
    """Number of processes that run reward functions, one episode at a time each. Rewards that are `async def`, such
    as a judge behind an endpoint, share one more process, which judges many episodes at once."""
    reward_timeout_s: Seconds = 30.0
    """A reward function that takes longer is killed, and its episode is dropped."""
    isolated_memory_mb: Annotated[
        Positive | None,
        IdleIf(
            lambda run: not any(options.get("isolated") for options in run.options.values()),
            "no reward and no environment is isolated",
        ),
    ] = None
    """Memory of one worker of an `isolated` environment or reward, with all that it starts. A worker that takes
    more is killed. Default: half of the machine's memory, divided among the workers of that environment or reward."""
    infra_retries: NonNegative = 2
    """Number of times that an episode is tried again after an infrastructure fault."""
    resume_episodes: Annotated[
        bool,
        IdleIf(
            lambda run: run.finetune.objective is not None or run.serve.learn,
            "only episodes that the run's own agent plays go on after a resume",
        ),
    ] = True
    """Keep the answers of unfinished episodes. A resumed run plays these episodes again with the same answers up to where
    they were, and then samples. `false`: it plays them anew."""
    truncated: Literal["score", "mask", "drop"] = "score"
    """Episodes that reached a limit of turns, tokens or context: `score` and train them; `mask` them, so
    that only their reward counts in the comparison; or `drop` them."""
    incomplete_groups: Literal["train", "drop"] = "train"
    """Groups with failed episodes: `train` the valid ones (at least two are needed), or `drop` the whole group."""
    on_agent_error: Literal["drop"] | float = "drop"
    """Treatment of an exception in the agent: `drop` the episode, or give it this reward."""
    dynamic_sampling: bool = False
    """Replace groups that teach the algorithm nothing by further groups, before a batch is trained.
    Under `grpo` these are the groups whose rewards are all equal, and with a discount those of them
    whose episodes are equally long. Under `running_baseline` every group teaches."""
    shuffle: bool = True
    """Take the tasks in a new order in each epoch. Tasks of a generator without an end are shuffled
    10,000 at a time."""
    epochs: Positive | None = None
    """Passes over the tasks; default: as many as the steps need."""

    def contradictions(self, run: "Config") -> Iterator[str]:
        if self.batch % self.group_size:
            lower = max(1, self.batch // self.group_size) * self.group_size
            yield (
                f"rollout.batch = {self.batch} is not a multiple of rollout.group_size = "
                f"{self.group_size}: try {lower}"
            )
        if self.max_inflight < self.group_size:
            yield (
                f"rollout.max_inflight = {self.max_inflight} cannot hold one group of "
                f"{self.group_size}: raise it to at least {self.group_size}"
            )


NO_EVALUATION = IdleIf(
    lambda run: not (run.eval.before or run.eval.after or run.eval.every),
    "nothing is measured: eval.before, eval.after and eval.every are off",
)


class EvalSection(Section):
    """Measurements on held-out tasks."""

    every: NonNegative = 0
    """Steps between evaluations during training; 0: none during training."""
    before: bool = True
    """Measure the model before training."""
    after: bool = True
    """Measure the model after training."""
    tasks: Annotated[Positive, NO_EVALUATION] = 100
    """Maximum number of tasks of each split; a sample is drawn with `run.seed`."""
    samples: Annotated[Positive, NO_EVALUATION] = 1
    """Attempts at each task."""
    temperature: Annotated[Annotated[float, Field(ge=0, le=10)] | None, NO_EVALUATION] = None
    """Temperature of sampling; 0 always takes the likeliest token. Default: 0 if `samples = 1`, else 1."""
    max_concurrency: Annotated[Positive, NO_EVALUATION] = 32
    """Maximum number of episodes of an evaluation that run at the same time."""
    splits: Annotated[tuple[str, ...], NO_EVALUATION] = ("eval",)
    """The splits to ask of `tasks(split)`. The first split decides which weights are the best."""
    keep_best: bool = True
    """Export the best weights of all evaluations to `checkpoints/best`."""
    stop_at_success: Annotated[float, Field(gt=0, le=1)] | None = None
    """Stop the run when an evaluation reaches this success."""

    def contradictions(self, run: "Config") -> Iterator[str]:
        if self.stop_at_success is not None and not self.every:
            yield "eval.stop_at_success needs evaluations during training: set eval.every"

    @property
    def sampling_temperature(self) -> float:
        """Temperature of evaluations. Several greedy attempts at a task would all be the same one."""
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.samples == 1 else 1.0
