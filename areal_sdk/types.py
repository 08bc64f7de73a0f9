"""The nouns that flow through a run, in the order they are made.

    Task -> Turn* -> Episode -> (trajectory.Trajectory, algorithms.Batch) -> WeightUpdate

Plain frozen dataclasses: no tensors, no I/O, picklable, JSON-able.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal, Self, TypeVar

Message = dict[str, Any]
"""One OpenAI chat message."""

Tool = dict[str, Any]
"""One OpenAI tool definition: `{"type": "function", "function": {...}}`."""

Item = TypeVar("Item", "Turn", "Episode")


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to attempt. `id` is stable across runs: it keys groups, seeds and resumes."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    """Data for the agent, the rewards and the environment: a question, an answer, a seed."""
    key: str = field(default="", init=False, repr=False, compare=False)
    """Digits that name what the task asks (`task_key`), from the time it is issued."""

    @property
    def source(self) -> str:
        """The task's `source` or, without one, its `family`, from its data; empty if the data names
        neither.

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
    """The reason why a turn does not continue the turn that its client meant to continue."""

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
    """The reason why a turn's sampled tokens are context only.

    Their logprob is not the policy's, or the run does not train such turns (`side_call`) or their policy.
    """

    GREEDY = "greedy"
    TRUNCATED_DISTRIBUTION = "truncated_distribution"
    PENALTY = "penalty"
    LOGIT_BIAS = "logit_bias"
    GRAMMAR = "grammar"
    NO_LOGPROBS = "no_logprobs"
    SIDE_CALL = "side_call"
    FROZEN_POLICY = "frozen_policy"


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call, in tokens, exactly as the engine saw and produced it.

    If the prompt begins like an earlier turn of the episode, only the rest of it is kept: a long conversation is stored
    once, and so is the common beginning of its branches. Turns are equal if their prompts are, however they are kept.
    """

    new_tokens: tuple[int, ...] = field(compare=False)
    """The prompt after its first `num_shared` tokens."""
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
    """Reason that is set when the client sent history but no recorded turn could be extended as it was."""
    excluded: Exclusion | None = None
    policy: str = ""
    """Name of the policy that sampled the turn, in a run with several (`[policy.NAME]`)."""
    num_stale_kv: int = 0
    """Trailing output tokens sampled on KV of older weights (engine option `kv_on_update = "keep"`)."""
    duration_s: float = 0.0
    began_s: float = field(default=0.0, compare=False)
    """Seconds from the opening of the session to the request: what lies between turns is the agent's."""
    first_token_s: float = field(default=0.0, compare=False)
    """Seconds from the request to its first token: the wait for a slot, and prefill."""
    num_cached: int = field(default=0, compare=False)
    """Tokens of the prompt that the engine did not compute again."""
    offers_tools: bool = field(default=False, compare=False)
    """Whether the request had tools that the model could call."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """`tools` at the beginning of a conversation that has some. A call that another
    provider answered also has `request` (model, sampling, metadata) and `usage`."""
    num_shared: int = field(default=0, compare=False)
    """Tokens at the start of the prompt that are kept with the turn `shares_with`."""
    shares_with: int | None = field(default=None, compare=False)
    """Index, in the episode, of the turn that begins with the same `num_shared` tokens: the parent,
    or a turn that the prompt forks from."""
    num_prompt: int = field(init=False)
    """Tokens of the whole prompt."""
    _before: "Turn | None" = field(default=None, repr=False, compare=False)
    """The turn `shares_with`. A turn that is pickled alone holds its whole prompt instead."""

    def __post_init__(self) -> None:
        lengths = {len(self.output_tokens), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"output_tokens, logprobs and versions differ in length: {lengths}")
        most = 0 if self._before is None else self._before.num_tokens
        if not 0 <= self.num_shared <= most:
            raise ValueError(f"num_shared = {self.num_shared}: the turn before has {most} tokens")
        object.__setattr__(self, "num_prompt", self.num_shared + len(self.new_tokens))

    # Not `__getstate__`: early versions of Python 3.11 put that of dataclasses in its place.
    def __reduce__(self) -> tuple[Any, ...]:
        whole = self.prompt_tokens
        alone = _state(self, new_tokens=whole, num_shared=0, shares_with=None, _before=None)
        return _restored, (Turn, alone)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Turn):
            return NotImplemented
        compared = (f.name for f in fields(self) if f.compare)
        return self is other or (
            all(getattr(self, name) == getattr(other, name) for name in compared)
            and self.prompt_tokens == other.prompt_tokens
        )

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
        return self._prompt_from(0)

    def _prompt_from(self, start: int) -> tuple[int, ...]:
        """The prompt without its first `start` tokens."""
        pieces = [self.new_tokens[max(start - self.num_shared, 0) :]]
        stop, turn = self.num_shared, self._before
        while stop > start:
            assert turn is not None, "a turn before keeps the shared tokens"
            kept = turn.num_shared
            if stop > kept:
                first = max(start, kept)
                said = max(first - turn.num_prompt, 0), max(stop - turn.num_prompt, 0)
                pieces.append(turn.output_tokens[slice(*said)])
                pieces.append(turn.new_tokens[first - kept : stop - kept])
                stop = kept
            turn = turn._before
        tokens: list[int] = []
        for piece in reversed(pieces):
            tokens += piece
        return tuple(tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The whole prompt and the output."""
        return self.prompt_tokens + self.output_tokens

    def tokens_from(self, start: int) -> tuple[int, ...]:
        """The whole prompt and the output without the first `start` tokens of both."""
        return self._prompt_from(start) + self.output_tokens[max(start - self.num_prompt, 0) :]

    def extends(self, other: "Turn") -> bool:
        """Whether the prompt begins with all tokens of `other`."""
        shared, turn = self.num_shared, self._before
        while turn is not None and turn is not other:
            shared, turn = min(shared, turn.num_shared), turn._before
        if turn is not None and shared == other.num_tokens:
            return True
        return self.prompt_tokens[: other.num_tokens] == other.tokens

    @property
    def text(self) -> str:
        """The text the client saw; empty when the turn was only a tool call."""
        return str(self.message.get("content") or "")


def _linked(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns of an episode, each of which shares only with turns before it.

    Agents may change turns and leave some out: a turn takes over what it shared with those.
    """
    kept: list[Turn] = []
    places: dict[tuple[int, ...], int] = {}
    for turn in turns:
        shared, before = turn.num_shared, turn._before
        while before is not None and _identity(before) not in places:
            shared, before = min(shared, before.num_shared), before._before
        place = places[_identity(before)] if before is not None and shared else None
        now = None if place is None else kept[place]
        places.setdefault(_identity(turn), len(kept))
        if now is not turn._before or place != turn.shares_with:
            start = 0 if now is None else shared
            new = turn._prompt_from(start)
            turn = replace(turn, new_tokens=new, num_shared=start, shares_with=place, _before=now)
        kept.append(turn)
    return tuple(kept)


def _identity(turn: Turn) -> tuple[int, ...]:
    """The same for a turn and for what `dataclasses.replace` makes of it with the same tokens."""
    return id(turn.new_tokens), id(turn.output_tokens), turn.num_shared, id(turn._before)


def _excerpt(text: str, *, most: int = 60) -> str:
    """The text in quotes and on one line, cut if it is long.

    >>> _excerpt("yes\\n"), _excerpt("a" * 99, most=4)
    ("'yes\\\\n'", "'aaaa'...")
    """
    return repr(text) if len(text) <= most else f"{text[:most]!r}..."


def pack_turns(turns: Sequence[Turn]) -> list[list[Any]]:
    """Linked turns for a pickle: what they share is in it once."""
    return [_state(turn, _before=None) for turn in turns]


def unpack_turns(rows: Sequence[list[Any]], known: Sequence[Turn] = ()) -> list[Turn]:
    """The turns again, which follow `known` in one episode."""
    turns = [*known]
    for row in rows:
        turn = _restored(Turn, row)
        if turn.shares_with is not None:
            object.__setattr__(turn, "_before", turns[turn.shares_with])
        turns.append(turn)
    return turns[len(known) :]


def _state(item: "Turn | Episode", **changed: Any) -> list[Any]:
    """The values of the fields for a pickle, some of them changed."""
    return [changed[n] if n in changed else getattr(item, n) for n in item.__dataclass_fields__]


def _restored(kind: type[Item], state: Sequence[Any]) -> Item:
    item = object.__new__(kind)
    for name, value in zip(kind.__dataclass_fields__, state, strict=True):
        object.__setattr__(item, name, value)
    return item


def _restored_episode(state: Sequence[Any], turns: Sequence[list[Any]]) -> "Episode":
    episode = _restored(Episode, state)
    object.__setattr__(episode, "turns", tuple(unpack_turns(turns)))
    return episode


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
    """One per turn, if turns have rewards; empty otherwise. Rewards of turns are trained, and `reward` is then only
    reported."""
    by_policy: Mapping[str, float] = field(default_factory=dict)
    """Rewards of policies, in a run with several. A policy without one here has `reward`."""
    success: bool | None = None
    """Whether the task was solved, if that is not simply `reward == 1`. Reported, never trained."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers to report: steps and evaluations record their means as `outcome/NAME`."""
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
        by_policy: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Self:
        by_policy = by_policy or {}
        for value in (reward, *(r for r in turn_rewards if r is not None), *by_policy.values()):
            if not math.isfinite(value):
                raise ValueError(
                    f"a reward must be a finite number, not {value}; return None to abstain"
                )
        return cls(
            OutcomeKind.REWARD,
            reward=float(reward),
            turn_rewards=turn_rewards,
            by_policy=by_policy,
            success=success,
            metrics=metrics or {},
        )

    @property
    def reported(self) -> Mapping[str, float]:
        """The metrics, and the rewards of policies as `policy/NAME`."""
        return {**self.metrics, **{f"policy/{name}": r for name, r in self.by_policy.items()}}

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
        object.__setattr__(self, "turns", _linked(self.turns))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored_episode, (_state(self, turns=()), pack_turns(self.turns))

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
"""The content of a published update.

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
    share_seen: float | None = None
    """Share of the weights that training changed whose rounded value changed too, if the file
    rounds the trained weights. None: nothing is rounded, or it is not known."""
    by_policy: "Mapping[str, WeightUpdate]" = field(default_factory=dict)
    """Updates of the policies, in a run with several; `path` is then None."""
