"""The nouns that flow through a run, in the order they are made.

    Task -> Turn* -> Episode -> (trajectory.Trajectory, algorithms.Batch) -> WeightUpdate

Plain frozen dataclasses: no tensors, no I/O, picklable, JSON-able.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal, Self

Message = dict[str, Any]
"""One OpenAI chat message."""

Tool = dict[str, Any]
"""One OpenAI tool definition: `{"type": "function", "function": {...}}`."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to attempt. `id` is stable across runs: it keys groups, seeds and resumes."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    """Data for the agent, the rewards and the environment: a question, an answer, a seed."""

    @property
    def source(self) -> str:
        """Where it comes from: its data's `source`, else `family`; empty where it names neither.

        >>> Task("1", {"source": "gsm8k"}).source, Task("2").source
        ('gsm8k', '')
        """
        source = self.data.get("source", self.data.get("family", ""))
        return source if isinstance(source, str) else ""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class ForkReason(StrEnum):
    """Why a turn does not continue the turn that its client meant to continue."""

    SYSTEM_CHANGED = "system_changed"
    TOOLS_CHANGED = "tools_changed"
    ARGS_CHANGED = "args_changed"
    EDITED = "edited"
    COMPACTION = "compaction"
    SUBAGENT = "subagent"
    RESAMPLED = "resampled"
    THINKING_DROPPED = "thinking_dropped"
    TEMPLATE_UNSTABLE = "template_unstable"


class Exclusion(StrEnum):
    """Why a turn's sampled tokens are context only.

    Their logprob is not the policy's, or (`side_call`) the run does not train such turns.
    """

    GREEDY = "greedy"
    TRUNCATED_DISTRIBUTION = "truncated_distribution"
    PENALTY = "penalty"
    LOGIT_BIAS = "logit_bias"
    GRAMMAR = "grammar"
    NO_LOGPROBS = "no_logprobs"
    SIDE_CALL = "side_call"


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call, in tokens, exactly as the engine saw and produced it.

    A turn that goes on from another keeps only what it adds: a long conversation is stored once.
    """

    new_tokens: tuple[int, ...]
    """The prompt after the turn that it goes on from; the whole prompt where there is none."""
    output_tokens: tuple[int, ...]
    """Every sampled token, stop tokens and tokens hidden by a stop string included."""
    logprobs: tuple[float, ...]
    """log softmax(logits / temperature) of each output token under the version that sampled it."""
    versions: tuple[int, ...]
    """Policy version that sampled each output token; weights may change mid-turn."""
    message: Message = field(default_factory=dict)
    """The assistant message as the client received it."""
    new_messages: tuple[Message, ...] = ()
    """The messages that the client added since the parent turn; all messages for a first turn."""
    temperature: float = 1.0
    finish_reason: FinishReason = FinishReason.STOP
    parent: int | None = None
    """Index, in the episode, of the turn whose prompt + output this prompt starts with."""
    fork: ForkReason | None = None
    """Set when the client sent history but no recorded turn could be extended as it was."""
    excluded: Exclusion | None = None
    num_stale_kv: int = 0
    """Trailing output tokens sampled on KV of older weights (engine option `kv_on_update = "keep"`)."""
    duration_s: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)
    """Of a call that another provider answered: `request` (model, sampling, metadata), `tools` where
    a conversation begins, `usage`. Empty for turns of our own engines."""
    num_prompt: int = field(init=False)
    """Tokens of the whole prompt."""
    _before: "Turn | None" = field(default=None, repr=False, compare=False)
    """The turn whose tokens the prompt begins with. Pickles hold the whole prompt instead."""

    def __post_init__(self) -> None:
        lengths = {len(self.output_tokens), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"output_tokens, logprobs and versions differ in length: {lengths}")
        if self._before is not None and self.parent is None:
            object.__setattr__(self, "new_tokens", self.prompt_tokens)
            object.__setattr__(self, "_before", None)
        shared = self._before.num_tokens if self._before else 0
        object.__setattr__(self, "num_prompt", shared + len(self.new_tokens))

    def __getstate__(self) -> list[Any]:
        return _state(self, new_tokens=self.prompt_tokens, _before=None)

    def __repr__(self) -> str:
        """A summary for people; `dataclasses.asdict` has the tokens."""
        sampled = f"{self.num_prompt} + {len(self.output_tokens)} tokens"
        calls = [str(call["function"]["name"]) for call in self.message.get("tool_calls") or ()]
        called = f", calls {', '.join(calls)}" if calls else ""
        return f"<Turn {sampled}, {self.finish_reason}{called}: {_excerpt(self.text)}>"

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + len(self.output_tokens)

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """All tokens of the prompt."""
        if self._before is None:
            return self.new_tokens
        pieces = [self.new_tokens]
        before: Turn | None = self._before
        while before is not None:
            pieces += (before.output_tokens, before.new_tokens)
            before = before._before
        tokens: list[int] = []
        for piece in reversed(pieces):
            tokens += piece
        return tuple(tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The whole prompt and the output."""
        return self.prompt_tokens + self.output_tokens

    def extends(self, other: "Turn") -> bool:
        """Whether the prompt begins with all tokens of `other`."""
        if self._before is other:
            return True
        return self.prompt_tokens[: other.num_tokens] == other.tokens

    def _shared_with(self, turns: "Sequence[Turn]") -> "Turn":
        """This turn, sharing tokens with none but its parent in `turns`."""
        before, parent = self._before, self.parent
        if before is None or any(turn is before for turn in turns[parent:][:1]):
            return self
        return replace(self, new_tokens=self.prompt_tokens, _before=None)

    @property
    def text(self) -> str:
        """The text the client saw; empty when the turn was only a tool call."""
        return str(self.message.get("content") or "")


def _excerpt(text: str, *, most: int = 60) -> str:
    """In quotes and on one line, cut if it is long.

    >>> _excerpt("yes\\n"), _excerpt("a" * 99, most=4)
    ("'yes\\\\n'", "'aaaa'...")
    """
    return repr(text) if len(text) <= most else f"{text[:most]!r}..."


def _state(item: "Turn | Episode", **changed: Any) -> list[Any]:
    """The values of the fields for a pickle, some of them changed."""
    names = [f.name for f in fields(item)]
    return [changed[name] if name in changed else getattr(item, name) for name in names]


def _restore(item: "Turn | Episode", state: Sequence[Any]) -> None:
    for f, value in zip(fields(item), state, strict=True):
        object.__setattr__(item, f.name, value)


class OutcomeKind(StrEnum):
    REWARD = "reward"
    ABSTAIN = "abstain"
    ERROR = "error"


class ErrorKind(StrEnum):
    AGENT = "agent"
    REWARD = "reward"
    ENVIRONMENT = "environment"
    INFRASTRUCTURE = "infrastructure"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on an episode. Never confuse a missing verdict with a reward of zero.

    >>> Outcome.scored(0.5, success=False).reward
    0.5
    >>> Outcome.scored(float("nan"))
    Traceback (most recent call last):
        ...
    ValueError: a reward must be a finite number, not nan; return None to abstain
    """

    kind: OutcomeKind
    reward: float | None = None
    turn_rewards: tuple[float | None, ...] = ()
    """One per turn where the reward is given per turn; empty otherwise. Where there are some, they
    are what is trained, and `reward` what is reported."""
    success: bool | None = None
    """Whether the task was solved, where that is not simply `reward == 1`. Reported, never trained."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: ErrorKind | None = None
    message: str = ""
    trace: str = ""
    """The traceback of the exception that user code raised."""

    @classmethod
    def scored(
        cls,
        reward: float,
        *,
        success: bool | None = None,
        turn_rewards: tuple[float | None, ...] = (),
        metrics: Mapping[str, float] | None = None,
    ) -> Self:
        for value in (reward, *(r for r in turn_rewards if r is not None)):
            if not math.isfinite(value):
                raise ValueError(
                    f"a reward must be a finite number, not {value}; return None to abstain"
                )
        return cls(
            OutcomeKind.REWARD,
            reward=float(reward),
            turn_rewards=turn_rewards,
            success=success,
            metrics=metrics or {},
        )

    @classmethod
    def abstained(cls, why: str = "") -> Self:
        return cls(OutcomeKind.ABSTAIN, message=why)

    @classmethod
    def failed(cls, error: ErrorKind, message: str, *, trace: str = "") -> Self:
        return cls(OutcomeKind.ERROR, error=error, message=message, trace=trace)


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at one task, with its outcome."""

    id: str
    task: Task
    turns: tuple[Turn, ...]
    outcome: Outcome
    group: str = ""
    """Id shared by the sibling attempts; empty for an ungrouped, live caller."""
    sibling: int = 0
    epoch: int = 0
    attempt: int = 0
    """Infrastructure retries so far: the same episode, tried again."""
    truncated: bool = False
    """A turn, token or context limit ended it. Scored like any other unless configured otherwise."""
    duration_s: float = 0.0

    def __post_init__(self) -> None:
        kept = [turn._shared_with(self.turns) for turn in self.turns]
        object.__setattr__(self, "turns", tuple(kept))

    def __getstate__(self) -> list[Any]:
        """Pickles the tokens that turns share only once."""
        rows = [(turn._before is not None, _state(turn, _before=None)) for turn in self.turns]
        return [*_state(self, turns=()), rows]

    def __setstate__(self, state: list[Any]) -> None:
        *own, rows = state
        _restore(self, own)
        turns: list[Turn] = []
        for is_linked, row in rows:
            turn = object.__new__(Turn)
            _restore(turn, row)
            if is_linked and turn.parent is not None:
                object.__setattr__(turn, "_before", turns[turn.parent])
            turns.append(turn)
        object.__setattr__(self, "turns", tuple(turns))

    def __repr__(self) -> str:
        outcome = self.outcome
        verdict = "abstained"
        if outcome.reward is not None:
            verdict = f"reward {outcome.reward:g}"
        elif outcome.kind is OutcomeKind.ERROR:
            verdict = f"{outcome.error} error {_excerpt(outcome.message)}"
        sampled = sum(len(turn.output_tokens) for turn in self.turns)
        size = f"{len(self.turns)} turns, {sampled} tokens sampled"
        cut = ", truncated" if self.truncated else ""
        about = f"{self.id} of {self.task.id}: {verdict}, {size}{cut}"
        return f"<Episode {about}: {_excerpt(self.final_text)}>"

    @property
    def reward(self) -> float | None:
        return self.outcome.reward

    @property
    def final_text(self) -> str:
        """The text of the last turn."""
        return self.turns[-1].text if self.turns else ""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation of the last turn's branch, from its first message to its answer."""
        chain: list[Turn] = []
        index: int | None = len(self.turns) - 1 if self.turns else None
        while index is not None:
            chain.append(self.turns[index])
            index = chain[-1].parent
        return tuple(m for turn in reversed(chain) for m in (*turn.new_messages, turn.message))


UpdateContents = Literal["all", "changed"]
"""What a published update holds.

* `all`: every tensor of the checkpoint;
* `changed`: only those that may differ from the checkpoint that the engine was started with. The others
  are as they are there, also in an engine that took another update before.
"""


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """New policy weights, and where an engine finds them."""

    version: int
    path: str | None
    """A safetensors file (memory-mapped, often in shared memory) or a checkpoint directory;
    None for a label-only update: the weights did not change, the version did."""
    checksum: str = ""
    contents: UpdateContents = "all"
    """`changed` only for an engine that accepts it (`InferenceEngine.accepts`)."""
