"""A fault ends the episode unless an SDK's retry hid it: then nobody's code has seen it."""

import pytest

from areal_sdk.engine import GenerateRequest
from areal_sdk.gateway import Gateway, Session
from areal_sdk.testing import Fault, Reply
from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import ASK, post

FAILS = Reply(fault=Fault.RAISE)
FAULT = "the engine failed: scripted fault"


async def ask(gateway: Gateway, session: Session, *, retry: int | str = 0, n: int = 1) -> int:
    """The status of an answer to the same body, as an SDK asks for it the first or a later time."""
    headers = {"x-stainless-retry-count": str(retry)}
    status, _ = await post(session, gateway, {**ASK, "n": n}, headers=headers)
    return status


async def test_a_retry_that_succeeds_forgives_every_attempt_before_it(
    start_gateway: StartGateway,
) -> None:
    """OpenAI's SDK asks three times by default: 503, 503, 200."""
    gateway, _ = await start_gateway([FAILS, FAILS, "fine"])
    session = gateway.sessions.open("e")
    assert [await ask(gateway, session, retry=retry) for retry in range(3)] == [503, 503, 200]
    assert session.faults == []


async def test_a_request_for_several_choices_meets_one_fault(start_gateway: StartGateway) -> None:
    is_down = True

    def script(request: GenerateRequest) -> Reply:
        return FAILS if is_down else Reply("fine")

    gateway, _ = await start_gateway(script)
    session = gateway.sessions.open("e")
    assert await ask(gateway, session, n=3) == 503
    assert session.faults == [FAULT]
    is_down = False
    assert await ask(gateway, session, n=3, retry=1) == 200
    assert session.faults == []


async def test_an_equal_request_is_no_retry(start_gateway: StartGateway) -> None:
    """Best of two without retries: the agent saw the one that failed, and scored it 0."""
    gateway, _ = await start_gateway([FAILS, "fine"])
    session = gateway.sessions.open("e")
    assert [await ask(gateway, session), await ask(gateway, session)] == [503, 200]
    assert session.faults == [FAULT]


async def test_a_retry_forgives_no_siblings_faults(start_gateway: StartGateway) -> None:
    """Best of two with one retry each: one fails twice, which the agent sees, the other once."""
    gateway, _ = await start_gateway([FAILS, FAILS, FAILS, "fine"])
    session = gateway.sessions.open("e")
    answers = [await ask(gateway, session, retry=retry) for retry in (0, 0, 1, 1)]
    assert answers == [503, 503, 503, 200]
    assert session.faults == [FAULT] * 2, "those of the request that was given up"


async def test_a_fault_that_no_sdk_retries_stands(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway([Reply(fault=Fault.HANG), "fine"], max_request_s=0.2)
    session = gateway.sessions.open("e")
    assert [await ask(gateway, session), await ask(gateway, session, retry=1)] == [504, 200]
    assert len(session.faults) == 1


@pytest.mark.parametrize("count", ["", "first", "-1", "1e3"])
async def test_a_retry_count_that_is_none_is_a_first_attempt(
    start_gateway: StartGateway, count: str
) -> None:
    gateway, _ = await start_gateway([FAILS, "fine"])
    session = gateway.sessions.open("e")
    assert [await ask(gateway, session), await ask(gateway, session, retry=count)] == [503, 200]
    assert session.faults == [FAULT]
