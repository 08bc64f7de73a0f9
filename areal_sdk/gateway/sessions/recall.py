"""The memory of a session beyond the run that it began in: it answers a known request as it was answered then.

A request is known by its prompt, token by token, and by how it asks (policy, limits, sampling, stops). So branches may come in
any order, and a request that was never made is sampled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

from areal_sdk.engine import GenerateChunk, GenerateRequest
from areal_sdk.telemetry.journal import Answer
from areal_sdk.types import Turn


class Recall:
    """The recorded answers of one episode, and the record of further ones."""

    def __init__(
        self, answers: Sequence[Answer], *, keep: Callable[[Answer, bool], bool], seed: int
    ) -> None:
        """`keep(answer, is_first)` appends an answer to the record, and returns whether it could. `seed` decides the
        ids of tool calls, which some templates show to the model."""
        self.seed = seed
        self.num_recorded = len(answers)
        self._keep = keep
        self._waiting: dict[int, list[tuple[int, Answer]]] = {}
        """Recorded answers that no request got yet, each with its place in the record, by length of the prompt."""
        for place, answer in enumerate(answers):
            self._waiting.setdefault(answer.turn.num_prompt, []).append((place, answer))
        self._recalled: dict[str, int] = {}
        """Places of the answers that requests have got, by request, until their turns are recorded."""
        self._places: dict[int, int] = {}
        """Places in the record by turn of the session."""
        self._num_kept = len(answers)
        self._is_whole = True

    @property
    def num_waiting(self) -> int:
        """The number of recorded answers that no request got yet."""
        return sum(map(len, self._waiting.values()))

    @property
    def num_replayed(self) -> int:
        return self.num_recorded - self.num_waiting

    def answer(self, request: GenerateRequest) -> GenerateChunk | None:
        """The recorded answer to the request; None if the model has to answer."""
        waiting = self._waiting.get(len(request.tokens))
        if not waiting:
            return None
        asked = _asked(request)
        for item in waiting:
            place, answer = item
            if answer.asked == asked and answer.turn.prompt_tokens == request.tokens:
                waiting.remove(item)
                self._recalled[request.request_id] = place
                return _chunk(answer)
        return None

    def keep(
        self,
        request: GenerateRequest,
        turn: Turn,
        index: int,
        *,
        stop_matched: str | int | None,
        top_logprobs: Sequence[Mapping[int, float]],
    ) -> None:
        """Note that the answer to the request is turn `index` of the session."""
        if (place := self._recalled.pop(request.request_id, None)) is not None:
            self._places[index] = place
            return
        if not self._is_whole:
            return
        shares_with = None if turn.shares_with is None else self._places.get(turn.shares_with)
        if shares_with is None and turn.num_shared:
            turn = replace(
                turn, new_tokens=request.tokens, num_shared=0, shares_with=None, _before=None
            )
        elif shares_with != turn.shares_with:
            turn = replace(turn, shares_with=shares_with)
        answer = Answer(_asked(request), turn, stop_matched, tuple(top_logprobs))
        self._is_whole = self._keep(answer, self._num_kept == 0)
        self._places[index] = self._num_kept
        self._num_kept += 1


def _asked(request: GenerateRequest) -> str:
    how = (
        request.max_new_tokens,
        request.sampling,
        request.stop,
        request.stop_tokens,
        request.ignore_eos,
        request.num_top_logprobs,
        request.json_schema,
        request.policy,
    )
    return blake2b(repr(how).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _chunk(answer: Answer) -> GenerateChunk:
    turn = answer.turn
    return GenerateChunk(
        turn.output_tokens,
        turn.logprobs,
        turn.versions,
        finish_reason=turn.finish_reason,
        stop_matched=answer.stop_matched,
        num_stale_kv=turn.num_stale_kv,
        top_logprobs=answer.top_logprobs,
    )
