"""The memory of a session: which request gets which recorded answer."""

from collections.abc import Sequence
from dataclasses import replace

from areal_sdk.engine import GenerateRequest, Sampling
from areal_sdk.gateway.sessions.recall import Recall
from areal_sdk.telemetry.journal import Answer
from areal_sdk.types import FinishReason, Turn

ASKED = GenerateRequest((1, 2, 3), 16, request_id="0")


def turn(tokens: tuple[int, ...], *said: int) -> Turn:
    return Turn(tokens, said, (-0.5,) * len(said), (3,) * len(said))


def recorded(*turns: tuple[GenerateRequest, Turn]) -> list[Answer]:
    """The record of a session without a memory."""
    kept: list[Answer] = []

    def keep(answer: Answer, is_first: bool) -> bool:
        assert is_first == (not kept)
        kept.append(answer)
        return True

    recall = Recall((), keep=keep, seed=0)
    for index, (request, one) in enumerate(turns):
        assert recall.answer(request) is None
        recall.keep(request, one, index, stop_matched=None, top_logprobs=())
    return kept


def resumed(answers: Sequence[Answer]) -> Recall:
    return Recall(answers, keep=lambda answer, is_first: True, seed=0)


def test_a_request_is_known_by_its_prompt_and_by_how_it_asks() -> None:
    recall = resumed(recorded((ASKED, turn((1, 2, 3), 7, 8))))
    for other in (
        replace(ASKED, tokens=(1, 2, 4)),
        replace(ASKED, max_new_tokens=17),
        replace(ASKED, sampling=Sampling(temperature=0.5)),
        replace(ASKED, stop=("\n",)),
        replace(ASKED, json_schema={"type": "object"}),
        replace(ASKED, policy="coder"),
    ):
        assert recall.answer(other) is None
    answer = recall.answer(replace(ASKED, session="another", seed=5, request_id="9"))
    assert answer is not None
    assert (answer.tokens, answer.logprobs, answer.versions) == ((7, 8), (-0.5, -0.5), (3, 3))
    assert answer.finish_reason is FinishReason.STOP
    assert recall.answer(ASKED) is None, "an answer is given once"
    assert (recall.num_replayed, recall.num_waiting) == (1, 0)


def test_equal_requests_get_their_answers_in_order_and_branches_in_any() -> None:
    branch = replace(ASKED, tokens=(4, 5, 6))
    recall = resumed(
        recorded(
            (ASKED, turn((1, 2, 3), 7)),
            (branch, turn((4, 5, 6), 8)),
            (ASKED, turn((1, 2, 3), 9)),
        )
    )
    said = [recall.answer(request) for request in (branch, ASKED, ASKED)]
    assert [answer and answer.tokens for answer in said] == [(8,), (7,), (9,)]


def test_a_later_answer_joins_the_record_where_the_prompt_begins_in_it() -> None:
    first = turn((1, 2, 3), 7)
    more: list[Answer] = []

    def keep(answer: Answer, is_first: bool) -> bool:
        assert not is_first
        more.append(answer)
        return True

    recall = Recall(
        recorded((replace(ASKED, tokens=(9,)), turn((9,), 9)), (ASKED, first)), keep=keep, seed=0
    )
    assert recall.answer(ASKED) is not None  # the second of the record is the first turn now
    recall.keep(ASKED, first, 0, stop_matched=None, top_logprobs=())
    goes_on = replace(ASKED, tokens=(1, 2, 3, 7, 4), request_id="1")
    second = Turn(
        (4,), (8,), (-0.5,), (3,), num_shared=first.num_tokens, shares_with=0, _before=first
    )
    assert recall.answer(goes_on) is None
    recall.keep(goes_on, second, 1, stop_matched=None, top_logprobs=())
    unknown = replace(goes_on, tokens=(1, 2, 3, 7, 4, 8, 5), request_id="2")
    third = Turn(
        (5,), (6,), (-0.5,), (3,), num_shared=second.num_tokens, shares_with=7, _before=second
    )
    recall.keep(unknown, third, 8, stop_matched=None, top_logprobs=())
    assert [answer.turn.shares_with for answer in more] == [1, None]
    assert [answer.turn.prompt_tokens for answer in more] == [goes_on.tokens, unknown.tokens]
