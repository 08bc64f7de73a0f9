"""AReaL's workflows, `arun_episode(self, engine, data)`, as they are written for AReaL.

`engine` is the episode's session: the tokens that are trained are those that it recorded. AReaL's result says more
than a reward: which tokens are trained, and a reward for each completion. This module carries both out. A request or
a result that cannot be honoured is refused by name.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from areal_sdk.agent import AgentForm, EpisodeContext
from areal_sdk.errors import AgentError
from areal_sdk.types import (
    Episode,
    Exclusion,
    Outcome,
    Task,
    Turn,
    alternatives,
    recorded_indices,
)

_NO_LIMIT = 10**6
"""Number from which a `top_k` leaves nothing out: AReaL writes 1e8."""

_PLAIN: Mapping[str, tuple[object, ...]] = {
    "n_samples": (1,),
    "min_new_tokens": (0,),
    "top_p": (1, 1.0),
    "frequency_penalty": (0, 0.0),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "lora_name": ("", "default_lora"),
}
"""Values of `gconfig` that ask for nothing; any other value is refused."""


@dataclass(slots=True)
class ModelResponse:
    """One completion, with AReaL's field names. AReaL's client changes its `stop_reason`."""

    input_tokens: list[int]
    output_tokens: list[int]
    output_logprobs: list[float]
    output_versions: list[int]
    stop_reason: str
    rid: str = ""
    tokenizer: Any = None
    input_images: list[Any] = field(default_factory=list)
    processor: Any = None
    routed_experts: Any = None
    latency: float = float("inf")
    ttft: float = float("inf")
    itl: list[float] = field(default_factory=list)

    @property
    def input_len(self) -> int:
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        return len(self.output_tokens)

    @property
    def end_with_stop(self) -> bool:
        """Whether the last token is the tokenizer's end or padding."""
        return bool(self.output_tokens) and self.output_tokens[-1] in self._ends()

    @property
    def output_tokens_without_stop(self) -> list[int]:
        """The sampled tokens without those at the end that only say that the answer has ended."""
        kept, ends = list(self.output_tokens), self._ends()
        while kept and kept[-1] in ends:
            kept.pop()
        return kept

    def _ends(self) -> set[int]:
        if self.tokenizer is None:
            raise AgentError("the request had no tokenizer: ModelRequest(..., tokenizer=...)")
        return {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id} - {None}


class SessionEngine:
    """`EpisodeContext.generate`, with AReaL's interface of an inference engine."""

    def __init__(self, context: EpisodeContext) -> None:
        self._context = context
        self._sampled: list[tuple[ModelResponse, Turn]] = []

    async def agenerate(self, req: Any) -> ModelResponse:
        config = getattr(req, "gconfig", None)
        _check_request(req, config)
        tokens = tuple(int(token) for token in req.input_ids)
        greedy = bool(getattr(config, "greedy", False))
        turn = await self._context.generate(
            tokens,
            max_new_tokens=_max_new_tokens(config, num_prompt=len(tokens)),
            temperature=0.0 if greedy else getattr(config, "temperature", None),
            stop=tuple(getattr(config, "stop", None) or ()),
            stop_tokens=_stop_tokens(config),
        )
        response = ModelResponse(
            input_tokens=list(turn.prompt_tokens),
            output_tokens=list(turn.output_tokens),
            output_logprobs=list(turn.logprobs),
            output_versions=list(turn.versions),
            stop_reason=turn.finish_reason.value,
            rid=str(getattr(req, "rid", "")),
            tokenizer=getattr(req, "tokenizer", None),
            latency=turn.duration_s,
        )
        self._sampled.append((response, turn))
        return response

    def get_version(self) -> int:
        """The newest version seen in this episode."""
        return max((v for turn in self._context.turns for v in turn.versions), default=0)

    @property
    def config(self) -> Any:
        raise AgentError(
            "engine.config: AReaL's settings are not here; give the workflow what it needs as "
            "parameters of __init__, which are options ([agent])"
        )

    def answered(self, turns: Sequence[Turn]) -> Mapping[int, int]:
        """Index in `turns` of each response's turn, by the response's `id`; `turns` are all of the episode."""
        places = recorded_indices([turn for _, turn in self._sampled], turns)
        return {
            id(response): place for (response, _), place in zip(self._sampled, places, strict=True)
        }


def _check_request(req: Any, config: Any) -> None:
    """Raise AgentError if the request asks for something that is not supported."""
    for name, plain in _PLAIN.items():
        value = getattr(config, name, plain[0])
        if value not in plain:
            raise AgentError(
                f"gconfig.{name} = {value!r} is not possible here: leave it at {plain[0]!r}"
            )
    top_k = getattr(config, "top_k", -1)
    if 0 < top_k < _NO_LIMIT:
        raise AgentError(f"gconfig.top_k = {top_k} is not possible here: leave it out")
    for name in ("image_data", "vision_msg_vllm"):
        if getattr(req, name, None):
            raise AgentError(f"{name}: images are not possible here; the policy reads text")


def _max_new_tokens(config: Any, *, num_prompt: int) -> int | None:
    """The limit of the answer. AReaL has one for the answer alone, and one for prompt and answer together."""
    bounds = [getattr(config, "max_new_tokens", None)]
    if (whole := getattr(config, "max_tokens", None)) is not None:
        bounds.append(whole - num_prompt)
    least: int | None = min((bound for bound in bounds if bound is not None), default=None)
    if least is not None and least <= 0:
        raise AgentError(
            f"the prompt has {num_prompt} tokens, and gconfig.max_tokens = {whole} leaves none to sample"
        )
    return least


def _stop_tokens(config: Any) -> tuple[int, ...]:
    """The stop tokens without None, which stands for the missing padding token of a tokenizer."""
    asked = getattr(config, "stop_token_ids", None) or ()
    return tuple(sorted(int(token) for token in asked if token is not None))


async def play_arun_episode(
    agent: Any, task: Task, context: EpisodeContext
) -> Episode | Outcome | float | None:
    """The episode that AReaL's workflow plays, as its result scores and masks it."""
    engine = SessionEngine(context)
    result = await agent.arun_episode(engine, dict(task.data))
    if result is None:
        return Outcome.abstained("arun_episode returned None: it rejected the episode")
    if isinstance(result, (int, float, Outcome)):
        return result
    if not isinstance(result, Mapping):
        raise AgentError(
            f"arun_episode returned {type(result).__name__}; a mapping with `rewards`, interactions by "
            "id, a number or None was expected"
        )
    if "rewards" in result:
        reward = _only([float(value) for value in _flat(result["rewards"])])
        turns = context.turns
        trained = _trained_by(result, turns) if "loss_mask" in result else range(len(turns))
        return _scored(task, context, dict.fromkeys(trained, reward), default=reward)
    interactions = list(result.values())
    if any(hasattr(each, "model_response") for each in interactions):
        if all(getattr(each, "reward", None) is None for each in interactions):
            return Outcome.abstained("no interaction of arun_episode's result has a reward")
        answered = engine.answered(context.turns)
        return _scored(task, context, _rewards_of(interactions, answered))
    rewards = [getattr(each, "reward", None) for each in interactions]
    return _only([float(reward) for reward in rewards if reward is not None])


def _only(rewards: Sequence[float]) -> float:
    if len(rewards) != 1:
        raise AgentError(
            f"arun_episode returned {len(rewards)} rewards for one episode, which has one: let "
            "rollout.group_size play a task several times, or return the interactions of AReaL's client "
            "by their ids"
        )
    return rewards[0]


def _flat(values: Any) -> Iterator[Any]:
    """The numbers in a tensor, an array or nested lists; a number by itself."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, Sequence):
        for value in values:
            yield from _flat(value)
    else:
        yield values


def _trained_by(result: Mapping[str, Any], turns: Sequence[Turn]) -> list[int]:
    """The turns in the row `input_ids` whose sampled tokens `loss_mask` marks, all of them or none."""
    row = tuple(int(token) for token in _flat(result["input_ids"]))
    marked = {place for place, is_trained in enumerate(_flat(result["loss_mask"])) if is_trained}
    trained = []
    for index, turn in enumerate(turns):
        places = range(turn.num_prompt, turn.num_tokens)
        if places and marked.issuperset(places) and row[: turn.num_tokens] == turn.tokens:
            trained.append(index)
            marked.difference_update(places)
    if marked:
        raise AgentError(
            f"loss_mask marks {len(marked)} tokens of arun_episode's result that are no whole completion of "
            "this episode: mark all tokens that agenerate returned, or none"
        )
    return trained


def _rewards_of(interactions: Sequence[Any], answered: Mapping[int, int]) -> dict[int, float]:
    """The reward with which AReaL would train each turn: the reward of the interaction that holds the turn."""
    found: dict[int, float] = {}
    for interaction in interactions:
        reward = getattr(interaction, "reward", None)
        for turn in _held_by(interaction, answered):
            if turn in found:
                raise AgentError(
                    f"two interactions of arun_episode's result train turn {turn}, and a token is trained "
                    'once: write export_interactions(style="individual")'
                )
            found[turn] = 0.0 if reward is None else float(reward)  # as AReaL does
    return found


def _held_by(interaction: Any, answered: Mapping[int, int]) -> Iterator[int]:
    """The turn of an interaction, and in AReaL's style "concat" the turns before it."""
    while interaction is not None:
        turn = answered.get(id(getattr(interaction, "model_response", None)))
        if turn is None:
            raise AgentError(
                "arun_episode's result has an interaction that this episode's engine did not sample"
            )
        yield turn
        is_concat = getattr(interaction, "chat_template_type", "") == "concat"
        interaction = getattr(interaction, "parent", None) if is_concat else None


def _scored(
    task: Task, context: EpisodeContext, trained: Mapping[int, float], *, default: float = 0.0
) -> Episode | float:
    """The episode whose turns are trained with these returns. Other turns are context. `default` is the reward of an
    episode without a trained turn."""
    turns, values = context.turns, set(trained.values())
    if len(values) == 1 and len(trained) == len(turns):
        return values.pop()
    own = _own_rewards(trained, turns)
    kept = tuple(
        turn if index in trained else replace(turn, excluded=turn.excluded or Exclusion.SIDE_CALL)
        for index, turn in enumerate(turns)
    )
    per_turn = tuple(own.get(index) for index in range(len(turns)))
    outcome = (
        Outcome.scored(values.pop() if values else default)
        if len(values) < 2
        else Outcome.scored(sum(own.values()), turn_rewards=per_turn)
    )
    return Episode(context.episode_id, task, kept, outcome)


def _own_rewards(returns: Mapping[int, float], turns: Sequence[Turn]) -> dict[int, float]:
    """Rewards a turn whose sums over a turn and its consequences are `returns`.

    AReaL trains a completion with the reward that it names, which its client has discounted already. A
    turn's rewards here add up to the end of the episode.
    """
    others = alternatives(turns) or ((),) * len(turns)
    own: dict[int, float] = {}
    for index in sorted(returns, reverse=True):
        later = sum(own[turn] for turn in own if turn not in others[index])
        own[index] = returns[index] - later
    return own


WORKFLOW = AgentForm(
    fits=lambda cls: inspect.iscoroutinefunction(getattr(cls, "arun_episode", None)),
    play=play_arun_episode,
    takes_tokens=True,
)
