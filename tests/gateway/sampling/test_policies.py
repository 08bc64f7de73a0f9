"""Several policies behind one gateway: `model` names the one that answers."""

from dataclasses import replace
from typing import Any

import pytest

from areal_sdk.engine import EngineInfo
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.sessions.recall import Recall
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.telemetry.journal import Answer
from areal_sdk.testing import ScriptedEngine
from areal_sdk.types import Exclusion
from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import get, post

ASKED = [{"role": "user", "content": "hello"}]


class Two(ScriptedEngine):
    """A script that two policies share, of which one is trained."""

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, policies={"planner": True, "rival": False})


async def ask(
    gateway: Gateway,
    session: Session,
    model: str,
    messages: Any = ASKED,
    path: str = "chat/completions",
) -> tuple[int, Any]:
    body = {"model": model, "messages": messages, "max_tokens": 16}
    return await post(session, gateway, body, path=path)


@pytest.fixture
async def two(start_gateway: StartGateway) -> tuple[Gateway, ScriptedEngine]:
    return await start_gateway("yes", engine_class=Two)


async def test_the_model_of_a_request_names_the_policy(two: tuple[Gateway, ScriptedEngine]) -> None:
    gateway, engine = two
    session = gateway.sessions.open("one")
    for path in ("chat/completions", "messages"):
        status, reply = await ask(gateway, session, "planner", path=path)
        assert (status, reply["model"]) == (200, "planner")
    status, reply = await ask(gateway, session, "rival")
    assert [turn.policy for turn in session.turns] == ["planner", "planner", "rival"]
    assert [request.policy for request in engine.requests] == ["planner", "planner", "rival"]


async def test_an_unknown_policy_is_refused_and_nothing_is_sampled(
    two: tuple[Gateway, ScriptedEngine],
) -> None:
    gateway, engine = two
    session = gateway.sessions.open("one")
    status, reply = await ask(gateway, session, "planer")
    assert status == 404
    assert "Known policies: planner, rival" in reply["error"]["message"]
    with pytest.raises(ApiError, match="Known policies: planner, rival"):
        await session.generate(ASKED)
    assert not engine.requests
    assert not session.turns


async def test_a_run_without_policies_answers_whatever_it_is_called(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("yes")
    session = gateway.sessions.open("one")
    status, reply = await ask(gateway, session, "gpt-9")
    assert (status, reply["model"], session.turns[0].policy) == (200, "policy", "")
    with pytest.raises(ApiError, match="none, since the run has no"):
        await session.generate(ASKED, policy="planner")


async def test_a_policy_continues_only_its_own_turns(two: tuple[Gateway, ScriptedEngine]) -> None:
    gateway, _ = two
    session = gateway.sessions.open("one")
    _, reply = await ask(gateway, session, "planner")
    longer = [*ASKED, reply["choices"][0]["message"], {"role": "user", "content": "and?"}]
    await ask(gateway, session, "rival", longer)
    await ask(gateway, session, "planner", longer)
    first, other, second = session.turns
    assert (other.parent, other.fork, other.num_shared) == (None, None, 0)
    assert (second.parent, second.fork) == (0, None)
    tokens = await session.generate((*first.tokens, 1), policy="rival")
    assert (tokens.parent, tokens.shares_with) == (None, 1)  # with the rival's own prompt


async def test_tokens_of_a_frozen_policy_are_context_and_have_no_age(
    two: tuple[Gateway, ScriptedEngine],
) -> None:
    gateway, _ = two
    session = gateway.sessions.open("one")
    await ask(gateway, session, "rival")
    assert session.turns[0].excluded is Exclusion.FROZEN_POLICY
    assert session.oldest_version is None
    await ask(gateway, session, "planner")
    assert session.turns[1].excluded is None
    assert session.oldest_version == 0


async def test_side_calls_are_those_beside_a_policy_s_own_conversation(
    two: tuple[Gateway, ScriptedEngine],
) -> None:
    gateway, _ = two
    session = gateway.sessions.open("one")
    await ask(gateway, session, "planner")
    reply = (await ask(gateway, session, "rival"))[1]
    await ask(gateway, session, "rival", [*ASKED, reply["choices"][0]["message"], *ASKED])
    assert session.close()[0].excluded is None


async def test_the_policies_are_the_models_that_are_listed(
    two: tuple[Gateway, ScriptedEngine],
) -> None:
    gateway, _ = two
    session = gateway.sessions.open("one")
    url = session.base_url(gateway.base_url)
    _, listed = await get(f"{url}/models", session.key)
    assert [model["id"] for model in listed["data"]] == ["planner", "rival"]
    assert (await get(f"{url}/models/rival", session.key))[0] == 200
    assert (await get(f"{url}/models/policy", session.key))[0] == 404


async def test_a_recorded_answer_of_one_policy_does_not_answer_another(
    two: tuple[Gateway, ScriptedEngine],
) -> None:
    gateway, engine = two
    kept: list[Answer] = []

    def keep(answer: Answer, is_first: bool) -> bool:
        kept.append(answer)
        return True

    session = gateway.sessions.open("one", recall=Recall([], keep=keep, seed=1))
    await ask(gateway, session, "planner")
    again = gateway.sessions.open("again", recall=Recall(kept, keep=keep, seed=1))
    await ask(gateway, again, "rival")
    assert engine.num_requests == 2
    await ask(gateway, again, "planner")
    assert engine.num_requests == 2
    assert [turn.policy for turn in again.turns] == ["rival", "planner"]


SHARED: dict[str, dict[str, float]] = {
    "gpt-4": {"rival": 1.0},
    "shop": {"planner": 1.0, "rival": 3.0},
    "*": {"planner": 1.0},
}


async def test_names_stand_for_policies_and_sessions_keep_their_arm(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("yes", engine_class=Two, model_names=SHARED)
    arms = []
    for number in range(60):
        session = gateway.sessions.open(f"alice/{number}")
        answers = [(await ask(gateway, session, "shop"))[1]["model"] for _ in range(2)]
        assert [turn.policy for turn in session.turns] == answers
        assert answers[0] == answers[1]
        arms.append(answers[0])
    assert 35 <= arms.count("rival") <= 55, "three of four"
    session = gateway.sessions.open("bob")
    for name, policy in (("gpt-4", "rival"), ("planner", "planner"), ("anything", "planner")):
        for path in ("chat/completions", "messages", "completions", "responses"):
            asked = {"chat/completions": ASKED, "messages": ASKED}.get(path, "hello")
            field = {"completions": "prompt", "responses": "input"}.get(path, "messages")
            status, reply = await post(
                session, gateway, {"model": name, field: asked, **LIMIT[path]}, path=path
            )
            assert (status, reply["model"]) == (200, policy), (name, path)
    _, listed = await get(f"{session.base_url(gateway.base_url)}/models", session.key)
    assert [model["id"] for model in listed["data"]] == ["planner", "rival", "gpt-4", "shop"]


LIMIT = {
    "chat/completions": {"max_tokens": 16},
    "messages": {"max_tokens": 16},
    "completions": {"max_tokens": 16},
    "responses": {"max_output_tokens": 16},
}
