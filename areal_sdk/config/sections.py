"""A run's settings: one model per TOML section, defaults that are the recommendation."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from areal_sdk.config.keys import join_key

JSON = dict[str, Any]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ValueError("choose auto, cpu, cuda or cuda:INDEX")
    return name


Device = Annotated[str, AfterValidator(_device)]


ENDLESS = 10**9
"""Steps of a run that ends when somebody ends it."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class RunSection(Section):
    """Where the run lives and when it ends."""

    dir: Path = Path("runs")
    """Run directories are made in here."""
    name: str | None = None
    """Directory name; default: agent and time."""
    seed: NonNegative = 0
    """Of sampling, and of the order of tasks."""
    steps: Positive = 100
    """Optimiser steps to take."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop after this much training time, whatever the step."""
    deterministic: bool = False
    """Bit-identical losses from run to run and across resume; implies `max_staleness = 0`."""
    checkpoint_every: NonNegative = 20
    """Steps between checkpoints; 0 keeps only the one at the end."""
    keep_checkpoints: Positive = 2
    """Older ones are deleted."""
    stop_grace_s: Seconds = 600.0
    """After Ctrl-C or SIGTERM, how long the step at work and the last checkpoint may take. Where a
    batch system kills sooner, what it grants. A second Ctrl-C waits for neither."""
    max_empty_batches: Positive = 10
    """Batches in a row without a gradient before the run ends as solved or hopeless."""

    @property
    def is_endless(self) -> bool:
        return self.steps >= ENDLESS


ADDRESS_BACKEND = "sglang"
"""The engine of servers that are named by address alone."""


class EngineSection(Section):
    """Who samples tokens."""

    name: str = "local"
    """`local`, `sglang`, a plugin's engine, or the address of running servers."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights that sample; `auto`: as the checkpoint stores them."""
    device: Device = "auto"
    """`cpu`, `cuda`, `cuda:1`; `auto`: a GPU where torch sees one."""
    max_slots: Positive = 32
    """Requests decoded together."""
    max_context: Positive | None = None
    """Prompt and output, in tokens; default: what the model was made for, or less where the memory
    for keys and values holds less."""
    kv_on_update: Literal["recompute", "keep"] = "recompute"
    """Requests in flight when the weights change: compute their keys and values again, or go on with
    the old ones, which is faster and further from what the trainer assumes."""
    threads: Positive = 1
    """Of torch; more than one pays only on idle cores."""

    @property
    def backend(self) -> str:
        """The registered engine that `name` means: addresses belong to `ADDRESS_BACKEND`."""
        return ADDRESS_BACKEND if "://" in self.name else self.name


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
    workers: NonNegative = 0
    """Processes that agents run in; 0: they run in the main process, where one that computes or
    blocks holds up all the others."""
    stale: Literal["wait", "drop", "mask"] = "wait"
    """Samples about to be too old: `wait` up to `wait_s` for them, then drop them; `drop` them at
    once; `mask` the tokens that are too old, and train the others."""
    wait_s: Seconds = 30.0
    """How long the trainer waits for them under `stale = "wait"`."""
    sampling: Literal["override", "respect"] = "override"
    """`override`: train on T = `temperature` whatever the client asked; `respect`: the client's
    own sampling, and turns whose distribution is not a plain softmax are not trained."""
    side_calls: Literal["train", "context"] = "train"
    """Turns beside the conversation, with instructions and tools of their own and never continued, as
    when an agent asks for a title: `context` does not train them."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    max_new_tokens: Positive = 256
    """Tokens a turn, unless the client asks for fewer."""
    max_turns: Positive = 32
    """Answers an episode may ask the model for."""
    max_episode_tokens: Positive | None = None
    """Sampled tokens an episode may spend."""
    episode_timeout_s: Seconds = 600.0
    """An episode that takes longer failed: it is dropped, not scored."""
    request_timeout_s: Seconds = 300.0
    """Deadline of one answer of the model."""
    tool_timeout_s: Seconds = 60.0
    """Deadline of one step of an environment, and of what blocks one of `workers`."""
    reward_workers: Positive = 2
    """Processes that reward functions run in, each judging one episode at a time: one that waits
    for a judge over the network wants as many as episodes should be judged at once."""
    reward_timeout_s: Seconds = 30.0
    """A reward function that takes longer is killed, and its episode dropped."""
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
    """Take the tasks in another order each epoch; a generator without an end, 10,000 at a time."""
    epochs: Positive | None = None
    """Passes over the tasks; default: as many as the steps need."""


class TrainerSection(Section):
    """The optimiser and where it runs."""

    name: str = "fsdp"
    """`fsdp`, or a plugin's trainer, which reads those of these settings that it has a use for."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    """Of AdamW, constant after the warm-up."""
    warmup_steps: NonNegative = 5
    """Steps over which the learning rate rises to its value."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Of AdamW."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Longer gradients are scaled down to this."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the matrix products; master weights are always float32."""
    head_precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the output layer under `precision = "bfloat16"`. With `float32` the trainer's logprobs are
    about a third closer to those of a float32 model; a step takes 7 to 20 % longer, and logits take
    twice the memory."""
    num_minibatches: Positive = 1
    """Optimiser steps a batch is split into."""
    tokens_per_microbatch: Positive = 4096
    """Tokens a rank computes at once; fewer need less memory and more time."""
    share_prompts: bool = True
    """Compute what the members of a group have in common once."""
    ranks: Positive = 1
    """Trainer processes that share the model and the batch (FSDP2)."""
    launcher: Literal["local", "torchrun"] = "local"
    """`local`: ranks are our child processes; `torchrun`: you start them, on any machine that has the
    run directory and the model at the same paths."""
    listen_host: str = "127.0.0.1"
    """Where ranks under torchrun connect to: an address that their machines reach."""
    listen_port: Port = 0
    """0: any free port."""
    device: Device = "auto"
    """`cpu` or `cuda`; `auto`: a GPU where torch sees one."""
    threads: Positive = 1
    """Of torch, in each rank; more than one pays only on idle cores."""
    step_timeout_s: Seconds = 1800.0
    """A step that takes longer ends the run: a rank hangs."""


class AlgorithmSection(Section):
    """The objective."""

    name: str = "grpo"
    """A preset: advantages and loss, with options in `[algorithm.NAME]`; `areal-sdk plugins` lists
    them."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_options(cls, values: Any) -> Any:
        """Name the table that an option belongs to."""
        name = (values.get("name") if isinstance(values, Mapping) else None) or "grpo"
        for key in values if isinstance(values, Mapping) else ():
            if not difflib.get_close_matches(key, cls.model_fields):
                written = join_key("algorithm", str(name), key)
                raise ValueError(f"{key} is an option of one algorithm: set {written}")
        return values


class SftSection(Section):
    """Warm-up on demonstrations before reinforcement learning."""

    demonstrations: str | None = None
    """A JSONL file of `{"messages": [...]}`; an agent file may define `demonstrations()` instead."""
    steps: NonNegative = 0
    """Supervised steps before the first episode; 0: no warm-up."""
    batch: Positive = 32
    """Demonstrations a step."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Of the supervised steps."""


class EvalSection(Section):
    """Held-out measurements."""

    every: NonNegative = 0
    """Steps between evaluations during training; 0: only before and after."""
    before: bool = True
    """Measure the model as it comes."""
    after: bool = True
    """Measure what the run ended with."""
    tasks: Positive = 100
    """At most this many tasks of each split, drawn by `run.seed`."""
    samples: Positive = 1
    """Attempts a task."""
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    """0: the likeliest token, always; default: 0 for one sample, 1 for several."""
    max_concurrency: Positive = 32
    """Episodes of an evaluation that run at the same time."""
    splits: tuple[str, ...] = ("eval",)
    """What `tasks(split)` is asked for; the first one decides which weights are the best."""
    keep_best: bool = True
    """Export the best weights seen at an evaluation to `checkpoints/best`."""
    stop_at_success: Annotated[float, Field(gt=0, le=1)] | None = None
    """Stop once an evaluation reaches this."""

    @property
    def sampling_temperature(self) -> float:
        """Several greedy attempts at a task would all be the same one."""
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.samples == 1 else 1.0


ToolFormatName = Literal["hermes", "qwen_coder", "glm", "llama", "mistral", "deepseek", "plain"]


class GatewaySection(Section):
    """The OpenAI-compatible endpoint."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in."""
    port: Port = 0
    """0: any free port."""
    admin_key: str | None = Field(default=None, repr=False)
    """Password of the gateway; made up at start-up when not given, never stored in the run."""
    tool_format: ToolFormatName | None = None
    """How the model writes tool calls; default: what its chat template shows."""
    unknown_fields: Literal["refuse", "note"] = "refuse"
    """What a request holds and the gateway cannot honour: a 400, or left out with a notice."""


class Quota(Section):
    """What one user may use. What is over it gets a 429 that says when to come again."""

    requests_per_minute: Positive | None = None
    """Of each user; what is over a quota gets a 429 that says when to come again."""
    tokens_per_minute: Positive | None = None
    """Sampled tokens of each user."""
    max_running: Positive | None = None
    """Requests of each user at the same time."""
    max_sessions: Positive = 10_000
    """Open sessions of each user; as many more may wait for their reward."""


class ServeSection(Quota):
    """Who calls `areal-sdk serve`, and what becomes of their sessions."""

    learn: bool = False
    """Train on the sessions of whoever calls, by the rewards that are posted for them."""
    record: bool = False
    """Keep every session in a run directory."""
    upstream: str | None = None
    """Pass calls on to the OpenAI-compatible provider at this address, in place of a model."""
    users: Path | None = None
    """A TOML file of users, `[NAME] api_key = "..."` each; default: all callers share one key."""
    idle_s: Seconds = 600.0
    """Without a request for so long a session ends."""
    reward_wait_s: Seconds = 600.0
    """After its end, how long a reward may still come; without one it is not trained."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may call; `*` for all."""

    @property
    def keeps_sessions(self) -> bool:
        """Whether there is a run directory."""
        return self.learn or self.record or self.upstream is not None
