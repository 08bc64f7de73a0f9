"""Sections about learning: trainer, adapter, algorithm, warm-up, fine-tuning."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    model_validator,
)

from areal_sdk.config.keys import join_key
from areal_sdk.config.sections.base import (
    Device,
    NonNegative,
    Positive,
    Seconds,
    Section,
)


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


FIRST_LEARNING_RATE = 2e-5
"""The learning rate that `auto` begins with."""
ADAPTER_LEARNING_RATE = 2e-4
"""The same for an adapter: about ten times that of all weights."""


class TrainerSection(Section):
    """The optimiser, and the machines that it runs on."""

    name: str = "fsdp"
    """`fsdp`, or a plugin's trainer. A plugin's trainer reads those settings below that it can use."""
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    """Highest learning rate of AdamW. `auto`: 2e-5, or 2e-4 for an adapter (`trainer.lora`); where episodes are
    trained, the rate then follows `trust_region`."""
    trust_region: Annotated[float, Field(ge=0)] = 0.3
    """Maximum KL of the policy after an update from the policy before it, in nats an episode (and at most 0.01 a token).
    A larger update is scaled back. 0: no maximum."""
    warmup_steps: NonNegative = 5
    """Steps of the run in which the learning rate rises to its value, however many updates a step makes."""
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
    """Dtype of the matrix products. Master weights are always float32. Default on a CPU of this machine that has
    no instructions for bfloat16: `float32`, which is at least four times as fast there."""
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
    min_ranks: Positive | None = None
    """Fewest ranks with which a run may go on, with `cluster.launcher = "ray"` and `run.restarts`.
    If the cluster has no room for all `ranks`, such as after the loss of a machine, the run goes on
    with fewer. At a checkpoint it takes more if there is room. Default: `ranks`."""
    replicas: Positive = 1
    """Copies of the model that the ranks hold between them. With one copy for each machine, weights are gathered
    inside a machine and only gradients travel between machines; a rank then holds as many times more."""
    sequence_ranks: Positive = 1
    """Neighbouring ranks that compute each row of tokens together, a part of it each, where a sequence is too long
    for one (Ulysses). Divides `ranks`, and the numbers of heads of the model."""
    defer_gradient_sync: bool = True
    """Sum gradients over several ranks once per optimiser step, not after each micro-batch. Each
    rank then holds a whole gradient during the step (4 bytes per trained parameter). Turn it off
    for a model whose gradient does not fit (`areal-sdk doctor train`)."""
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
                "choose a divisor, because all copies of the weights have equally many ranks"
            )
        if self.ranks % self.sequence_ranks:
            raise ValueError(
                f"sequence_ranks = {self.sequence_ranks} does not divide ranks = {self.ranks}: "
                "choose a divisor, because equally many ranks compute each row of tokens"
            )
        if self.min_ranks is not None and self.min_ranks > self.ranks:
            raise ValueError(
                f"min_ranks = {self.min_ranks} is more than ranks = {self.ranks}: choose at most that"
            )
        return self

    @property
    def rank_counts(self) -> list[int]:
        """The numbers of ranks that the run may have, the largest first."""
        least = self.ranks if self.min_ranks is None else self.min_ranks
        return [
            num
            for num in range(self.ranks, least - 1, -1)
            if num % self.replicas == 0 and num % self.sequence_ranks == 0
        ]

    @property
    def first_learning_rate(self) -> float:
        """The learning rate that a run begins with, and that fine-tuning keeps."""
        if self.learning_rate != "auto":
            return self.learning_rate
        return ADAPTER_LEARNING_RATE if self.lora.rank else FIRST_LEARNING_RATE


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
    """Strength with which `dpo` ties the policy to the weights that the run began with."""
    length_normalised: bool = False
    """Have `dpo` compare mean logprobs per token, so that a long answer does not weigh more."""
