"""A run's settings: one model per TOML section, defaults that are the recommendation."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    model_validator,
)

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
"""The number of steps of a run without an end: somebody stops it."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def sections_in(model: type[BaseModel]) -> dict[str, type[Section]]:
    """The tables that a section declares, by name."""
    found = {name: field.annotation for name, field in model.model_fields.items()}
    return {
        name: annotation
        for name, annotation in found.items()
        if isinstance(annotation, type) and issubclass(annotation, Section)
    }


class RunSection(Section):
    """Where the run lives and when it ends."""

    dir: Path = Path("runs")
    """The directory in which run directories are made."""
    name: str | None = None
    """Name of the run directory; default: agent and time."""
    seed: NonNegative = 0
    """Seed of sampling and of the order of tasks."""
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
    stop_grace_s: Seconds = 600.0
    """After Ctrl-C or SIGTERM, the time for the current step and the last checkpoint. If a batch system
    kills the job earlier, set the time that it allows. A second Ctrl-C waits for neither."""
    max_empty_batches: Positive = 10
    """The run ends after this many batches in a row without a gradient: the tasks are solved or
    hopeless."""

    @property
    def is_endless(self) -> bool:
        return self.steps >= ENDLESS


class MixtureSection(Section):
    """One source of tasks in a mixture."""

    tasks: str
    """As the setting `tasks`: a file or a plugin's dataset."""
    eval_tasks: str | None = None
    """The same for the held-out splits. A plugin's dataset has its own."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Its share of the groups, in proportion to the weights of the others."""
    name: str = ""
    """How reports call it; default: the name of the file or dataset."""
    fields: dict[str, str] = Field(default_factory=dict)
    """As the setting `fields`, for this source; default: that setting."""

    @property
    def label(self) -> str:
        return self.name or Path(self.tasks).stem


class EngineSection(Section):
    """The engine that samples tokens."""

    name: str = "local"
    """`local`, `sglang`, a plugin's engine, or the addresses of running servers."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the weights that sample; `auto`: the dtype of the checkpoint."""
    device: Device = "auto"
    """`cpu`, `cuda` or `cuda:1`; `auto`: a GPU if torch finds one."""
    max_slots: Positive = 32
    """Number of requests that are decoded together."""
    max_context: Positive | None = None
    """Maximum length of prompt and output, in tokens; default: the model's own, or less if the memory
    for keys and values holds less."""
    kv_on_update: Literal["recompute", "keep"] = "recompute"
    """Keys and values of running requests when the weights change: `recompute` them, or `keep` the old
    ones. `keep` is faster, but less exact for training."""
    threads: Positive = 1
    """Threads of torch; more than one helps only on idle cores."""


class RolloutSection(Section):
    """How episodes run, and which of them may be trained."""

    batch: Positive = 32
    """Episodes per step; a multiple of `group_size`."""
    group_size: Positive = 8
    """Attempts at each task. The rewards of the attempts are compared with one another."""
    max_staleness: NonNegative = 2
    """Maximum age (eta) of a trained token, in updates of the weights."""
    max_inflight: Positive = 64
    """Maximum number of episodes that run at the same time."""
    workers: NonNegative = 0
    """Number of processes that run agents. 0: agents run in the main process, and an agent that
    computes or blocks delays all others."""
    stale: Literal["wait", "drop", "mask"] = "wait"
    """Treatment of samples that become too old: `wait` for them up to `wait_s`, then drop them; `drop`
    them at once; `mask` the tokens that are too old, and train the others."""
    wait_s: Seconds = 30.0
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
    """Number of processes that run reward functions. Each judges one episode at a time, so a reward that
    calls a judge over the network needs as many as episodes should be judged at once."""
    reward_timeout_s: Seconds = 30.0
    """A reward function that takes longer is killed, and its episode is dropped."""
    infra_retries: NonNegative = 2
    """Number of times that an episode is tried again after an infrastructure fault."""
    truncated: Literal["score", "mask", "drop"] = "score"
    """Episodes that reached a limit of turns, tokens or context: `score` and train them; `mask` them, so
    that only their reward counts in the comparison; or `drop` them."""
    incomplete_groups: Literal["train", "drop"] = "train"
    """Groups with failed episodes: `train` the valid ones (at least two are needed), or `drop` the whole
    group."""
    on_agent_error: Literal["drop"] | float = "drop"
    """After an exception in the agent: `drop` the episode, or give it this reward."""
    dynamic_sampling: bool = False
    """Replace groups that teach the algorithm nothing by further groups, before a batch is trained.
    Under `grpo` these are the groups whose rewards are all equal, and with a discount those of them
    whose episodes are equally long. Under `running_baseline` every group teaches."""
    shuffle: bool = True
    """Take the tasks in a new order in each epoch. Tasks of a generator without an end are shuffled
    10,000 at a time."""
    epochs: Positive | None = None
    """Passes over the tasks; default: as many as the steps need."""


def _as_names(value: Any) -> Any:
    """A lone name is a list of one."""
    return (value,) if isinstance(value, str) and value != ALL_LINEAR else value


ALL_LINEAR: Literal["all-linear"] = "all-linear"


class LoraSection(Section):
    """LoRA: a small adapter is trained, and the weights of the model stay as they are."""

    rank: NonNegative = 0
    """Rank of the adapter's matrices. 0: no adapter, all weights are trained."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Strength of the adapter: its product counts `alpha / rank` times. The best learning rate then hardly
    depends on the rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the adapter's inputs that are left out in a step of `sft`, `dpo`, `reward-model` and `distill`.
    Runs that play episodes have none."""
    targets: Annotated[Literal["all-linear"] | tuple[str, ...], BeforeValidator(_as_names)] = (
        ALL_LINEAR
    )
    """Linear layers of the decoder that get an adapter: `all-linear`, or names such as `q_proj`."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_a_value(cls, values: Any) -> Any:
        if isinstance(values, (Mapping, cls)):
            return values
        raise ValueError(
            "that is a table, [trainer.lora]: set trainer.lora.rank, for example to 16"
        )


ADAPTER_LEARNING_RATE = 2e-4
"""Default of `trainer.learning_rate` for an adapter: about ten times that of all weights."""


class TrainerSection(Section):
    """The optimiser, and the machines that it runs on."""

    name: str = "fsdp"
    """`fsdp`, or a plugin's trainer. A plugin's trainer reads those settings below that it can use."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    """Highest learning rate of AdamW. Default for an adapter (`trainer.lora`): 2e-4."""
    warmup_steps: NonNegative = 5
    """Steps in which the learning rate rises to its value."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Learning rate after the warm-up: constant, or falling until the last step (`run.steps`) along a line, along
    half a wave, or (`wsd`: warm up, stay, decay) along a line in the last steps alone. Supervised warm-up
    (`sft.steps`) has none."""
    schedule_end: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Part of the learning rate that a schedule falls to."""
    decay_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Part of the steps in which `wsd` falls."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Memory of AdamW for gradients."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Memory of AdamW for squared gradients. It is long, so that the large gradients of the start are remembered:
    else a nearly solved task's tiny, noisy gradients are scaled up to full steps and undo what was learned."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Added by AdamW to the root of the squared gradients."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of AdamW."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Maximum norm of the gradient; a larger gradient is scaled down."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Dtype of the matrix products. Master weights are always float32."""
    head_precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Dtype of the output layer under `precision = "bfloat16"`. With `float32` the trainer's logprobs are
    about a third closer to those of a float32 model; a step takes 7 to 20 % longer."""
    num_minibatches: Positive = 1
    """Number of optimiser steps that each batch is split into."""
    tokens_per_microbatch: Positive = 4096
    """Tokens that a rank computes at once. Fewer tokens need less memory and more time."""
    activation_checkpointing: Literal["none", "half", "full"] = "none"
    """Layers that compute their activations again in the backward pass, so that these take no memory in
    between: none, every other one, or all. The step then computes up to a third more, with the same result."""
    share_prompts: bool = True
    """Compute a prefix that several trained sequences have in common only once."""
    ranks: Positive = 1
    """Number of trainer processes. They share the model and the batch (FSDP2)."""
    replicas: Positive = 1
    """Copies of the model that the ranks hold between them. With one copy for each machine, weights are gathered
    inside a machine and only gradients travel between machines; a rank then holds as many times more."""
    defer_gradient_sync: bool = True
    """With several ranks: sum gradients over the ranks once per optimiser step, not after each micro-batch. Each
    rank then holds a whole gradient during the step (4 bytes per trained parameter). Turn it off for a model
    whose gradient does not fit (`areal-sdk doctor train`)."""
    launcher: Literal["local", "torchrun"] = "local"
    """`local`: areal-sdk starts the ranks. `torchrun`: you start the ranks, on any machine that has the
    run directory and the model at the same paths."""
    listen_host: str = "127.0.0.1"
    """Address to which ranks under torchrun connect; their machines must reach it."""
    listen_port: Port = 0
    """Port to which ranks under torchrun connect; 0: any free port."""
    device: Device = "auto"
    """`cpu` or `cuda`; `auto`: a GPU if torch finds one."""
    threads: Positive = 1
    """Threads of torch in each rank; more than one helps only on idle cores."""
    step_timeout_s: Seconds = 1800.0
    """Deadline of a step. A step that takes longer ends the run, because a rank hangs."""
    lora: LoraSection = LoraSection()

    @model_validator(mode="after")
    def _divide(self) -> Self:
        if self.ranks % self.replicas:
            raise ValueError(
                f"replicas = {self.replicas} does not divide ranks = {self.ranks}: "
                "each copy needs as many ranks as the others"
            )
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _imply(cls, values: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """An adapter has another learning rate than all weights, unless one was given."""
        section = read(values)
        if section.lora.rank and "learning_rate" not in section.model_fields_set:
            return read(
                {**section.model_dump(exclude_unset=True), "learning_rate": ADAPTER_LEARNING_RATE}
            )
        return section


class AlgorithmSection(Section):
    """The objective."""

    name: str = "grpo"
    """A preset of advantages and loss. The options of the preset are in `[algorithm.NAME]`.
    `areal-sdk plugins` lists the presets."""

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
    """A JSONL file, a line a conversation: `{"messages": [...]}`, and `"tools": [...]` where the agent offers tools.
    Instead, an agent file may define `demonstrations()`, which yields the same, or lists of messages."""
    steps: NonNegative = 0
    """Supervised steps before the first episode; 0: no warm-up."""
    batch: Positive = 32
    """Demonstrations per step."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate of the supervised steps."""


class FinetuneSection(Section):
    """Learning from data instead of episodes: `areal-sdk sft`, `dpo`, `reward-model`, `distill`."""

    objective: Literal["sft", "dpo", "reward_model"] | None = None
    """The objective of such a run; default: a run that plays episodes."""
    data: tuple[str, ...] = ()
    """Data to learn from: JSONL files, and directories of runs (their episodes are the data)."""
    eval_data: tuple[str, ...] = ()
    """Held-out data of the same kinds. The loss on these data is measured before training, after training, and
    every `eval.every` steps."""
    epochs: Annotated[float, Field(gt=0)] = 1.0
    """Passes over the data, if `run.steps` is not set."""
    batch: Positive = 32
    """Rows or pairs per step."""
    max_tokens: Positive = 4096
    """Maximum tokens of a row. Longer rows are left out and counted."""
    min_reward: float | None = None
    """Minimum reward of the episodes of a run that are imitated; default: episodes that succeeded."""
    per_task: Positive | None = None
    """Maximum number of episodes of each task, those with the highest rewards; default: all."""
    beta: Annotated[float, Field(gt=0)] = 0.1
    """For `dpo`: strength of the tie to the weights that the run began with."""
    length_normalised: bool = False
    """For `dpo`: compare mean logprobs per token, so that a long answer does not weigh more."""


class EvalSection(Section):
    """Measurements on held-out tasks."""

    every: NonNegative = 0
    """Steps between evaluations during training; 0: none during training."""
    before: bool = True
    """Measure the model before training."""
    after: bool = True
    """Measure the model after training."""
    tasks: Positive = 100
    """Maximum number of tasks of each split; a sample is drawn with `run.seed`."""
    samples: Positive = 1
    """Attempts at each task."""
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    """Temperature of sampling; 0 always takes the likeliest token. Default: 0 if `samples = 1`, else 1."""
    max_concurrency: Positive = 32
    """Maximum number of episodes of an evaluation that run at the same time."""
    splits: tuple[str, ...] = ("eval",)
    """The splits to ask of `tasks(split)`. The first split decides which weights are the best."""
    keep_best: bool = True
    """Export the best weights of all evaluations to `checkpoints/best`."""
    stop_at_success: Annotated[float, Field(gt=0, le=1)] | None = None
    """Stop the run when an evaluation reaches this success."""

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
    """Address to listen on; `0.0.0.0` accepts calls from other machines."""
    port: Port = 0
    """Port to listen on; 0: any free port."""
    admin_key: str | None = Field(default=None, repr=False)
    """The gateway's admin key; default: made up at start-up. It is never stored in the run."""
    tool_format: ToolFormatName | None = None
    """Format of the model's tool calls; default: the format of its chat template."""
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
    """Open sessions of each user. As many more sessions may wait for their reward."""


class ServeSection(Quota):
    """The callers of `areal-sdk serve`, and the treatment of their sessions."""

    learn: bool = False
    """Train on the sessions of callers, with the rewards that callers post."""
    record: bool = False
    """Keep every session in a run directory."""
    upstream: str | None = None
    """Pass calls on to the OpenAI-compatible provider at this address, instead of serving a model."""
    users: Path | None = None
    """A TOML file of users, each with `[NAME] api_key = "..."`; default: all callers share one key."""
    idle_s: Seconds = 600.0
    """A session ends after this time without a request."""
    reward_wait_s: Seconds = 600.0
    """Time after the end of a session in which a reward may still come. A session without a reward is not
    trained."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may call; `*` for all."""

    @property
    def keeps_sessions(self) -> bool:
        """Whether there is a run directory."""
        return self.learn or self.record or self.upstream is not None
