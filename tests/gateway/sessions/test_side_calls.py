"""Turns beside an episode's conversation: told apart, and trained only where the run wants that."""

from typing import Any

import pytest

from areal_sdk.gateway import SamplingPolicy
from areal_sdk.gateway.sessions.history import side_calls
from areal_sdk.types import Exclusion, ForkReason, Turn
from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import control

TITLE: list[Any] = [
    {"role": "system", "content": "You write titles."},
    {"role": "user", "content": "Hi"},
]
CHAT: list[Any] = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "Hi"},
]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {}}}


@pytest.mark.parametrize("title_first", [True, False])
@pytest.mark.parametrize("trains", [True, False])
async def test_a_side_call_is_context_where_the_run_says_so(
    start_gateway: StartGateway, title_first: bool, trains: bool
) -> None:
    gateway, _ = await start_gateway(["Sure."] * 3)
    session = gateway.sessions.open("e", sampling=SamplingPolicy(trains_side_calls=trains))
    if title_first:
        await session.generate(TITLE)
    first = await session.generate(CHAT, tools=[TOOL])
    more = [*CHAT, first.message, {"role": "user", "content": "And?"}]
    await session.generate(more, tools=[TOOL])
    if not title_first:
        await session.generate(TITLE)
    turns = session.close()
    side = 0 if title_first else 2
    assert side_calls(turns) == [side]
    excluded = [turn.excluded for turn in turns]
    expected: list[Exclusion | None] = [None] * 3
    if not trains:
        expected[side] = Exclusion.SIDE_CALL
    assert excluded == expected
    assert session.excluded[Exclusion.SIDE_CALL] == (
        0 if trains else len(turns[side].output_tokens)
    )


async def test_a_session_that_asks_for_its_own_temperature_keeps_the_runs_side_calls(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway(sampling=SamplingPolicy(trains_side_calls=False))
    opened = {"id": "e", "sampling": {"temperature": 0.7}}
    status, answer = await control(gateway, "POST", "/control/sessions", opened)
    assert status == 201, answer
    live = gateway.external.get("e")
    assert live is not None
    assert live.session.sampling == SamplingPolicy(temperature=0.7, trains_side_calls=False)


def _turn(parent: int | None = None, fork: ForkReason | None = None) -> Turn:
    return Turn((1,), (), (), (), parent=parent, fork=fork)


@pytest.mark.parametrize(
    "turns",
    [
        [],
        [_turn()],
        [_turn(), _turn(fork=ForkReason.SUBAGENT)],
        [_turn(), _turn(fork=ForkReason.EDITED), _turn(parent=1)],
        [_turn(), _turn(parent=0), _turn(fork=ForkReason.EDITED)],
        [_turn(), _turn(parent=0), _turn(fork=ForkReason.SUBAGENT), _turn(parent=2)],
    ],
    ids=["none", "one", "no conversation", "rewritten", "an edited end", "a subagent that goes on"],
)
def test_what_may_be_the_conversation_is_no_side_call(turns: list[Turn]) -> None:
    assert side_calls(turns) == []
