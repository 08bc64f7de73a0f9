"""Sections about learning: trainer, adapter, algorithm, warm-up, fine-tuning."""

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from areal_sdk.config.keys import join_key
from areal_sdk.config.machine import bfloat16_is_slow
from areal_sdk.config.sections.base import Device, IdleIf, NonNegative, Positive, Seconds, Section

if TYPE_CHECKING:
    from areal_sdk.config.root import Config


def _as_names(value: Any) -> Any:
    """A lone name is a list of one."""
    return (value,) if isinstance(value, str) and value != ALL_LINEAR else value


ALL_LINEAR: Literal["all-linear"] = "all-linear"
_NO_ADAPTER = IdleIf(
    lambda run: not run.trainer.lora.rank, "there is no adapter without trainer.lora.rank"
)


class LoraSection(Section):
    """LoRA: a small adapter is trained, and the weights of the model stay as they are."""

    rank: NonNegative = 0
    """Rank of the adapter's matrices. 0: no adapter, all weights are trained."""
    alpha: Annotated[float, Field(gt=0), _NO_ADAPTER] = 32.0
    """Strength of the adapter: the product of its matrices is scaled by `alpha / rank`. The best learning rate then
    hardly depends on the rank."""
    dropout: Annotated[float, Field(ge=0, lt=1), _NO_ADAPTER] = 0.0
    """Share of the adapter's inputs that are left out in a step of `sft`, `dpo`, `reward-model` and `distill`.
    Runs that play episodes have none."""
    targets: Annotated[
        Literal["all-linear"] | tuple[str, ...], BeforeValidator(_as_names), _NO_ADAPTER
    ] = ALL_LINEAR
    """Linear layers of the decoder that get an adapter: `all-linear`, or names such as `q_proj`."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_a_value(cls, values: Any) -> Any:
        if isinstance(values, (Mapping, cls)):
            return values
        raise ValueError(
            "that is a table, [trainer.lora]: set trainer.lora.rank, for example to 16"
        )

    def contradictions(self, run: "Config") -> Iterator[str]:
        if self.dropout and run.finetune.objective is None:
            yield (
                f"trainer.lora.dropout = {self.dropout}: the trainer scores a sampled token "
                "with the weights that sampled it, and dropout changes them: leave it out"
            )


class PolicySection(Section):
    """One of several policies, `[policy.NAME]`. A request chooses one by its `model`."""

    frozen: str | None = None
    """Model whose weights stay as they are: a directory, a run, a hub id, or the address of SGLang servers. It must have
    the tokens of `model`. Default: the policy is trained, from the weights of `model`."""
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Learning rate of this policy; default: `trainer.learning_rate`."""

    @model_validator(mode="after")
    def _trains_or_not(self) -> Self:
        if self.frozen is not None and self.learning_rate is not None:
            raise ValueError("a frozen policy learns nothing: leave learning_rate or frozen out")
        return self


FIRST_LEARNING_RATE = 2e-5
"""The learning rate that `auto` begins with."""
ADAPTER_LEARNING_RATE = 2e-4
"""The learning rate that `auto` begins with for an adapter: ten times as large."""


class TrainerSection(Section):
    """The optimiser, and the machines that it runs on."""

    name: str = "fsdp"
    """`fsdp`, or a plugin's trainer. A plugin's trainer reads those settings below that it can use."""
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    """Highest learning rate of AdamW. Where episodes are trained, the rate falls while updates go beyond
    `trust_region`, and rises again. `auto` begins with 2e-5, or 2e-4 for an adapter (`trainer.lora`), and may
    rise a thousandfold."""
    trust_region: Annotated[
        float,
        Field(ge=0),
        IdleIf(
            lambda run: run.finetune.objective is not None,
            "only updates from episodes are held; a run that learns from data keeps its learning rate",
        ),
    ] = 0.3
    """Maximum KL of the policy after an update from the policy before it, in nats an episode (and at most 0.01 a token).
    A larger update is scaled back. 0: no maximum."""
    warmup_steps: NonNegative = 5
    """Steps of the run in which the learning rate rises to its value, however many updates a step makes."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Learning rate after the warm-up: constant, or falling until the last step (`run.steps`) along a line, along
    half a wave, or (`wsd`: warm up, stay, decay) along a line in the last steps alone. Supervised warm-up
    (`sft.steps`) has none."""
    schedule_end: Annotated[
        float,
        Field(ge=0, le=1),
        IdleIf(
            lambda run: run.trainer.schedule == "constant",
            'the learning rate does not fall (trainer.schedule = "constant")',
        ),
    ] = 0.0
    """Part of the learning rate that a schedule falls to."""
    decay_share: Annotated[
        float,
        Field(gt=0, le=1),
        IdleIf(
            lambda run: run.trainer.schedule != "wsd",
            'only trainer.schedule = "wsd" falls in the last steps alone',
        ),
    ] = 0.2
    """Part of the steps in which `wsd` falls."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Memory of AdamW for gradients."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Memory of AdamW for squared gradients. It is long, so that the large gradients of the start are remembered.
    Otherwise AdamW scales the tiny, noisy gradients of a nearly solved task up to full steps, which undo what was
    learned."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Added by AdamW to the root of the averaged squared gradients."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of AdamW."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Maximum norm of the gradient; a larger gradient is scaled down."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Dtype of the matrix products. Master weights are always float32. Default on a CPU or GPU of this
    machine that has no instructions for bfloat16: `float32`, which is at least four times as fast on such a CPU."""
    head_precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Dtype of the output layer under `precision = "bfloat16"`. With `float32` the trainer's logprobs are
    about a third closer to those of a float32 model; a step takes 7 to 20 % longer."""
    num_minibatches: Positive = 1
    """Number of optimiser steps that each batch is split into."""
    tokens_per_microbatch: Positive = 4096
    """Tokens that a rank computes at once. Fewer tokens need less memory and more time."""
    activation_checkpointing: Literal["auto", "none", "half", "full"] = "auto"
    """Layers that compute their activations again in the backward pass, so that these take no memory in
    between: none, every other one, or all. The step then computes up to a third more, with the same result.
    `auto`: as few as the predicted memory of a step allows."""
    share_prompts: bool = True
    """Compute a prefix that several trained sequences have in common only once."""
    ranks: Positive = 1
    """Number of trainer processes. They share the model and the batch (FSDP2)."""
    min_ranks: Annotated[
        Positive | None,
        IdleIf(
            lambda run: run.finetune.objective is not None,
            "a run that learns from data keeps its number of ranks",
        ),
    ] = None
    """Fewest ranks with which a run may go on, with `cluster.launcher = "ray"` and `run.restarts`.
    If the cluster has no room for all `ranks`, such as after the loss of a machine, the run goes on
    with fewer. At a checkpoint it takes more if there is room. Default: `ranks`."""
    replicas: Positive = 1
    """Copies of the model that the ranks hold between them. With one copy for each machine, weights are gathered inside
    a machine and only gradients travel between machines; each rank then holds `replicas` times as much of the model."""
    sequence_ranks: Positive = 1
    """Neighbouring ranks that share each row of tokens, for sequences that are too long for one rank (Ulysses).
    Divides `ranks`, and the numbers of heads of the model."""
    defer_gradient_sync: Annotated[
        bool,
        IdleIf(
            lambda run: run.trainer.ranks == 1,
            "one rank has nobody to sum gradients with (trainer.ranks)",
        ),
    ] = True
    """Sum gradients over several ranks once per optimiser step, not after each micro-batch. Each
    rank then holds a whole gradient during the step (4 bytes per trained parameter). Turn it off
    for a model whose gradient does not fit (`areal-sdk doctor train`)."""
    device: Device = "auto"
    """`cpu`, `cuda`, or `cuda:1` for a single rank; `auto`: a GPU if torch finds one."""
    threads: Positive = 1
    """Threads of torch in each rank. Default: as `engine.threads`."""
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
        if self.ranks > 1 and ":" in self.device:
            raise ValueError(
                f'device = "{self.device}" puts all {self.ranks} ranks on one GPU, where they cannot send to each other '
                'with NCCL: write device = "cuda", and name the GPUs of the run in CUDA_VISIBLE_DEVICES'
            )
        if self.min_ranks is not None and self.min_ranks > self.ranks:
            raise ValueError(
                f"min_ranks = {self.min_ranks} is more than ranks = {self.ranks}: choose at most that"
            )
        return self

    def contradictions(self, run: "Config") -> Iterator[str]:
        if self.schedule != "constant" and run.run.is_endless:
            yield (
                f'trainer.schedule = "{self.schedule}" falls until the last step, and this run has '
                "none: set run.steps, or leave the schedule out"
            )

    def remarks(self, run: "Config") -> Iterator[str]:
        rate = self.first_learning_rate
        follows = self.learning_rate == "auto" and run.finetune.objective is None
        if follows and not self.trust_region:
            yield (
                'trainer.learning_rate = "auto" follows nothing where trainer.trust_region = 0: it stays '
                f"{rate:g}: leave trust_region out, or set a rate"
            )
        if self.lora.rank and rate < ADAPTER_LEARNING_RATE / 4:
            yield (
                f"trainer.learning_rate = {rate:g} changes little: an adapter (trainer.lora) usually needs about "
                f"ten times the rate of all weights: try {10 * rate:g}, or leave it out for "
                f"{ADAPTER_LEARNING_RATE:g}"
            )
        is_here = run.cluster.launcher == "local" and bfloat16_is_slow(self.device)
        if is_here and self.precision == "bfloat16":
            yield (
                'trainer.precision = "bfloat16" takes several times as long as float32: this device has no '
                "instructions for it: leave it out"
            )

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


class AlgorithmSection(Section):
    """The objective."""

    name: str = "grpo"
    """A preset of advantages and loss. The options of the preset are in `[algorithm.NAME]`.
    `areal-sdk plugins` lists the presets."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_options(cls, values: Any) -> Any:
        """Refuse a preset's option that stands in `[algorithm]`; the error names the table where it belongs."""
        name = (values.get("name") if isinstance(values, Mapping) else None) or "grpo"
        for key in values if isinstance(values, Mapping) else ():
            if not difflib.get_close_matches(key, cls.model_fields):
                written = join_key("algorithm", str(name), key)
                raise ValueError(f"{key} is an option of one algorithm: set {written}")
        return values

    def remarks(self, run: "Config") -> Iterator[str]:
        options = run.options.get(f"algorithm.{self.name}", {})
        idle: dict[str, str] = {}
        if self.name in _CENTRED_ON_THE_STEP and run.trainer.num_minibatches == 1:
            why = "with one minibatch a step nothing is ever clipped (trainer.num_minibatches)"
            idle |= dict.fromkeys(_OF_LATER_MINIBATCHES, why)
        if self.name == "dapo" and not options.get("overlong_limit"):
            why = "without algorithm.dapo.overlong_limit no answer is too long"
            idle |= dict.fromkeys(("overlong_margin", "overlong_penalty"), why)
        for key, value in options.items():
            if key in idle:
                yield f"{join_key('algorithm', self.name, key)} = {value!r} changes nothing: {idle[key]}"


_NO_WARM_UP = IdleIf(lambda run: not run.sft.steps, "there is no warm-up without sft.steps")


class SftSection(Section):
    """Warm-up on demonstrations before reinforcement learning."""

    demonstrations: Annotated[str | None, _NO_WARM_UP] = None
    """A file (JSONL, JSON, CSV, Parquet) with a conversation a row: `{"messages": [...]}`, and `"tools": [...]` where the agent offers tools.
    Instead, an agent file may define `demonstrations()`, which yields such rows, or lists of messages."""
    steps: NonNegative = 0
    """Supervised steps before the first episode; 0: no warm-up."""
    batch: Annotated[Positive, _NO_WARM_UP] = 32
    """Demonstrations per step."""
    learning_rate: Annotated[float, Field(gt=0), _NO_WARM_UP] = 1e-3
    """Learning rate of the supervised steps."""


_NO_DATA = IdleIf(
    lambda run: run.finetune.objective is None,
    "a run that plays episodes learns from them (areal-sdk sft, dpo, reward-model, distill)",
)
_NO_DPO = IdleIf(
    lambda run: run.finetune.objective != "dpo", 'only dpo reads them (finetune.objective = "dpo")'
)
_NO_IMITATION = IdleIf(
    lambda run: run.finetune.objective != "sft",
    "only what is imitated is selected; pairs are the best against the worst of a group",
)


class FinetuneSection(Section):
    """Learning from data instead of episodes: `areal-sdk sft`, `dpo`, `reward-model`, `distill`."""

    objective: Literal["sft", "dpo", "reward_model"] | None = None
    """The objective of such a run; default: a run that plays episodes."""
    data: Annotated[tuple[str, ...], _NO_DATA] = ()
    """Data to learn from: files (JSONL, JSON, CSV, Parquet), saved datasets, and directories of runs (their
    episodes are the data)."""
    eval_data: Annotated[tuple[str, ...], _NO_DATA] = ()
    """Held-out data of the same kinds. The loss on these data is measured before training, after training, and
    every `eval.every` steps."""
    epochs: Annotated[float, Field(gt=0), _NO_DATA] = 1.0
    """Passes over the data, if `run.steps` is not set."""
    batch: Annotated[Positive, _NO_DATA] = 32
    """Rows or pairs per step."""
    max_tokens: Annotated[Positive, _NO_DATA] = 4096
    """Maximum tokens of a row. Longer rows are left out and counted."""
    min_reward: Annotated[float | None, _NO_IMITATION] = None
    """Minimum reward of the episodes of a run that are imitated; default: episodes that succeeded."""
    per_task: Annotated[Positive | None, _NO_IMITATION] = None
    """Maximum number of episodes of each task, those with the highest rewards; default: all."""
    beta: Annotated[float, Field(gt=0), _NO_DPO] = 0.1
    """Strength with which `dpo` ties the policy to the weights that the run began with."""
    length_normalised: Annotated[bool, _NO_DPO] = False
    """Have `dpo` compare mean logprobs per token, so that a long answer does not weigh more."""
