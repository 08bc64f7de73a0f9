"""The part of an episode that is replayed: which recorded answer belongs to a request."""

from collections.abc import Sequence

from areal_sdk import EngineError, GenerateChunk, GenerateRequest, Turn
from areal_sdk.types import FinishReason


class Replay:
    """The turns before a turn. A request is known by its prompt, token by token, so branches may run side by side."""

    def __init__(self, turns: Sequence[Turn], turn: int) -> None:
        self._num = turn
        self._waiting = list(turns[:turn])
        self._next = {one.prompt_tokens for one in turns[turn:]}
        self._has_forked = False

    def answer(self, request: GenerateRequest) -> Turn | None:
        """The recorded turn of the request; None if the model has to answer.

        EngineError if the request was never made: the episode has left its record before the fork.
        """
        for turn in self._waiting:
            if turn.prompt_tokens == request.tokens:
                self._waiting.remove(turn)
                return turn
        if not self._has_forked and request.tokens not in self._next:
            replayed = self._num - len(self._waiting)
            raise EngineError(
                f"the episode left its record after {replayed} of {self._num} replayed turns: its next prompt is "
                "not the recorded one. Its agent, environment or chat template has changed, or depends on time, "
                "chance or the seed of the attempt"
            )
        self._has_forked = True
        return None


def chunk_of(turn: Turn, request: GenerateRequest, model_stops: Sequence[int]) -> GenerateChunk:
    """The recorded answer, as an engine gives it."""
    matched: str | int | None = None
    if turn.finish_reason is FinishReason.STOP and turn.output_tokens:
        last = turn.output_tokens[-1]
        if last in (*model_stops, *request.stop_tokens):
            matched = last
        elif request.stop:
            # The record does not say which of several ended it. A wrong guess changes the next prompt, and the replay
            # says so.
            matched = request.stop[0]
    return GenerateChunk(
        turn.output_tokens,
        turn.logprobs,
        turn.versions,
        finish_reason=turn.finish_reason,
        stop_matched=matched,
    )
