"""The page about the gateway says what the gateway does."""

import json
from typing import Any

import pytest

from areal_sdk.gateway.accounts.accounts import User
from areal_sdk.gateway.tool_calls import FORMATS
from areal_sdk.types import ForkReason
from tests.gateway.conftest import StartGateway
from tests.gateway.published import HONOURED, PAGE, _fields
from tests.toolbox.gateway_requests import HI, control, post

ACCEPTED = _fields("accepted: they change nothing about what a policy samples")
NOTICED = _fields("accepted with a notice on the session")


@pytest.mark.parametrize("field", ACCEPTED)
async def test_an_accepted_field_changes_nothing(start_gateway: StartGateway, field: str) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    status, _ = await post(session, gateway, {"messages": HI, field: "x"})
    assert (status, session.notices) == (200, [])


@pytest.mark.parametrize("field", NOTICED)
async def test_a_field_without_effect_is_noticed(start_gateway: StartGateway, field: str) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    status, _ = await post(session, gateway, {"messages": HI, field: {}})
    assert (status, session.notices) == (200, [f"{field} has no effect here"])


async def test_every_honoured_field_is_read(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    body: dict[str, Any] = {"messages": HI, **dict.fromkeys(HONOURED - {"messages"})}
    assert (await post(session, gateway, body))[0] == 200


def test_every_reason_and_format_is_on_the_page() -> None:
    assert [r for r in ForkReason if f"`{r}`" not in PAGE] == []
    assert [name for name in FORMATS if f"`{name}`" not in PAGE and name != "plain"] == []


async def test_the_example_of_a_group_is_answered_as_the_page_says(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("ok", users=[User("alice", "sk-alice-0123456789abcdef")])
    example = PAGE.partition("curl http://127.0.0.1:8000/control/sessions")[2].partition("```")[0]
    asked, _, answer = example.partition("-d '")[2].partition("'\n")
    status, body = await control(gateway, "POST", "/control/sessions", json.loads(asked))
    assert status == 201
    shown = json.loads(answer)["sessions"]
    assert [s["id"] for s in body["sessions"]] == [s["id"] for s in shown]
    assert [list(s) for s in body["sessions"]] == [list(s) for s in shown]
