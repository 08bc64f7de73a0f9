"""Episodes on real servers: OpenEnv's own package, in an environment of its own that the tests make."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from areal_sdk import ConfigError, EpisodeError, StepResult, Task
from areal_sdk.environment import EVAL_SEEDS
from areal_sdk.errors import InfrastructureError
from areal_sdk_openenv.environment import OpenEnv
from areal_sdk_openenv.server import SHARED, Server
from areal_sdk_openenv.tasks import tasks

SERVERS = Path(__file__).parent / "servers"
PACKAGES = ("fastapi", "fastmcp>=2", "jinja2", "pyyaml", "requests", "uvicorn", "websockets")
"""Packages that a server needs. OpenEnv's own list has 477 MB more: a web page, a hub's client, other people's APIs."""
DEADLINE_S = 120.0


# without a server


def test_a_server_is_named_once() -> None:
    for options in ({}, {"url": "http://a", "command": "b {port}"}):
        with pytest.raises(ConfigError, match="give the address of an OpenEnv server, or"):
            OpenEnv(**options)
    with pytest.raises(ConfigError, match=r"write \{port\} where the server reads its port"):
        OpenEnv(command="python server.py")


def test_held_out_seeds_are_never_trained() -> None:
    train = [task.data["reset"]["seed"] for task in tasks("train", count=5)]
    held = [task.data["reset"]["seed"] for task in tasks("eval", eval_count=3, reset={"size": 4})]
    assert (train, held) == ([0, 1, 2, 3, 4], [EVAL_SEEDS, EVAL_SEEDS + 1, EVAL_SEEDS + 2])
    assert next(tasks("eval", reset={"size": 4})).data["reset"]["size"] == 4


async def test_a_server_that_is_not_there_is_nobodys_fault_in_the_episode() -> None:
    environment = OpenEnv(url="http://127.0.0.1:9", call_timeout_s=30.0)
    with pytest.raises(EpisodeError, match=r"OpenEnv server http://127.0.0.1:9: a session failed"):
        await environment.reset(Task("a", {}))
    await environment.close()


async def test_a_command_that_ends_at_once_says_what_it_wrote() -> None:
    command = f"{sys.executable} -c \"print('no module named shop'); raise SystemExit(3)\" {{port}}"
    with pytest.raises(
        EpisodeError, match="ended with exit code 3; it wrote: no module named shop"
    ):
        await Server("", command, start_timeout_s=DEADLINE_S).start()
    with pytest.raises(ConfigError, match="does not start"):
        await Server("", "/no/such/program {port}", start_timeout_s=DEADLINE_S).start()


async def test_episodes_that_begin_together_ask_a_server_for_its_schema_once() -> None:
    server, asked = Server("http://127.0.0.1:9", "", start_timeout_s=DEADLINE_S), []

    async def ask() -> dict[str, Any]:
        await asyncio.sleep(0)
        asked.append(None)
        return {"action": {}}

    assert await asyncio.gather(*(server.schema(ask) for _ in range(3))) == [{"action": {}}] * 3
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("[", "no OpenEnv message"),
        ("[" * 100_000, "no OpenEnv message"),
        ('{"type": "observation", "data": [1]}', "no OpenEnv message"),
        ('{"type": "error", "data": "full"}', "no OpenEnv message"),
        ('{"data": {"observation": ["x"]}}', "is no object"),
        ('{"data": {"observation": {}, "reward": "much"}}', "'much', no finite number"),
        ('{"data": {"observation": {}, "reward": NaN}}', "nan, no finite number"),
        ('{"type": "error", "data": {"code": "X", "message": "m", "errors": ["e"]}}', "X: m"),
    ],
)
async def test_an_answer_that_is_no_openenv_is_a_fault_of_infrastructure(
    answer: str, why: str
) -> None:
    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        await socket.send_str(answer)
        return socket

    app = web.Application()
    app.router.add_get("/ws", session)
    async with TestServer(app) as server, opened(url=str(server.make_url("/"))) as environment:
        with pytest.raises(InfrastructureError, match=why):
            await environment.reset(Task("a", {}))


async def test_a_server_that_hangs_is_killed_and_the_next_episode_starts_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("areal_sdk_openenv.server.HEALTH_S", 0.1)
    command = f"{sys.executable} {SERVERS / 'hangs.py'} {{port}}"
    environment = OpenEnv(command=command, start_timeout_s=DEADLINE_S, call_timeout_s=0.5)
    with pytest.raises(EpisodeError, match="no sign of an answer to reset"):
        await environment.reset(Task("a", {}))
    await environment.close()
    server = await SHARED.get(
        ("", command), lambda: Server("http://another", "", start_timeout_s=1)
    )
    assert server.url == "http://another", "the server that hung was still there"


# on servers


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has OpenEnv's package and what a server needs."""
    if ready := os.environ.get("AREAL_SDK_OPENENV_PYTHON"):
        return ready
    place = tmp_path_factory.mktemp("openenv")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=DEADLINE_S)
    own = str(place / "bin" / "python")
    for what in (("--no-deps", "openenv==0.10.0"), PACKAGES):
        install = [own, "-m", "pip", "install", "--quiet", *what]
        ended = subprocess.run(install, capture_output=True, text=True, timeout=300)
        if ended.returncode:
            pytest.skip(f"OpenEnv's package could not be installed: {ended.stderr.strip()[-200:]}")
    return own


@pytest.fixture
def count_up(python: str) -> str:
    return f"{python} {SERVERS / 'count_up.py'} {{port}}"


@pytest.fixture
def words(python: str) -> str:
    return f"{python} {SERVERS / 'words.py'} {{port}}"


@pytest.fixture(autouse=True)
async def ended() -> AsyncIterator[None]:
    """No server outlives its test."""
    yield
    await SHARED.aclose()


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[OpenEnv]:
    environment = OpenEnv(**options, start_timeout_s=DEADLINE_S, call_timeout_s=DEADLINE_S)
    try:
        yield environment
    finally:
        await environment.close()


def called(name: str, arguments: object, number: int = 0) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "id": f"call-{number}",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def said(result: StepResult) -> list[str]:
    return [str(message["content"]) for message in result.messages]


@pytest.mark.long
async def test_the_fields_of_an_action_are_the_arguments_of_a_tool(count_up: str) -> None:
    async with opened(command=count_up) as environment:
        opening = await environment.reset(Task("a", {"reset": {"target": 4}, "prompt": "Count."}))
        assert opening == [{"role": "user", "content": 'Count.\n\n{"total": 0, "target": 4}'}]
        (tool,) = environment.tools
        assert tool["function"]["name"] == "act"
        assert tool["function"]["description"] == "Add a number to the sum."
        assert set(tool["function"]["parameters"]["properties"]) == {"amount"}
        assert tool["function"]["parameters"]["required"] == ["amount"]
        first = await environment.step(calling(called("act", {"amount": 3})))
        assert (said(first), first.reward, first.done) == (
            ['{"total": 3, "target": 4}'],
            0.0,
            False,
        )
        last = await environment.step(calling(called("act", {"amount": 1})))
        assert (last.reward, last.done) == (1.0, True)


@pytest.mark.long
async def test_what_the_model_gets_wrong_is_answered_and_nothing_moves(count_up: str) -> None:
    async with opened(command=count_up) as environment:
        await environment.reset(Task("a", {"reset": {"target": 2}}))
        wrong = [
            (called("act", {"amount": 9}), "error: Invalid message: amount: Input should be"),
            (called("act", {"amount": 3}), "error: 3 is too much"),
            (called("act", {"number": 1}), "error: Invalid message: amount: Field required"),
            (called("act", "{"), "error: the arguments are no JSON object"),
            (called("jump", {}), "error: no tool 'jump'; there are act"),
        ]
        for call, beginning in wrong:
            result = await environment.step(calling(call))
            assert said(result)[0].startswith(beginning)
            assert (result.reward, result.done) == (None, False)
        both = await environment.step(
            calling(called("act", {"amount": 2}), called("act", {"amount": 1}, 1))
        )
        assert said(both)[1] == "error: the episode was over before this call"
        assert (both.reward, both.done) == (1.0, True)


@pytest.mark.long
async def test_an_answer_without_an_action_ends_the_episode_with_its_own_reward(
    count_up: str,
) -> None:
    for reward in (0.0, -1.0):
        async with opened(command=count_up, idle_reward=reward) as environment:
            await environment.reset(Task("a", {}))
            result = await environment.step({"role": "assistant", "content": "I will not."})
            assert (result.reward, result.done) == (reward, True)


@pytest.mark.long
async def test_an_answer_may_be_a_field_and_turns_are_counted(count_up: str) -> None:
    async with opened(command=count_up, text_field="amount", max_turns=2) as environment:
        await environment.reset(Task("a", {}))
        assert environment.tools == ()
        first = await environment.step({"role": "assistant", "content": "2"})
        assert first.messages == [{"role": "user", "content": '{"total": 2, "target": 5}'}]
        last = await environment.step({"role": "assistant", "content": "two"})
        assert said(last)[0].startswith(
            "error: Invalid message: amount: Input should be a valid integer"
        )
        assert (last.reward, last.done) == (None, True)
    async with opened(
        command=count_up, text_field="amount", max_turns=1, idle_reward=-1.0
    ) as silly:
        await silly.reset(Task("b", {}))
        result = await silly.step({"role": "assistant", "content": "two"})
        assert (result.reward, result.done) == (-1.0, True), "no action was ever taken"


@pytest.mark.long
async def test_the_tools_of_a_server_of_tools_are_offered_as_they_are(words: str) -> None:
    async with opened(command=words) as environment:
        opening = await environment.reset(
            Task("a", {"messages": [{"role": "user", "content": "Hi"}]})
        )
        assert opening[0] == {"role": "user", "content": "Hi"}
        (tool,) = environment.tools
        assert tool["function"]["name"] == "shout"
        assert set(tool["function"]["parameters"]["properties"]) == {"word"}
        result = await environment.step(calling(called("shout", {"word": "yes"})))
        assert (said(result), result.reward, result.done) == (["YES"], None, False)
        result = await environment.step(calling(called("shout", {"nothing": 1})))
        assert said(result)[0].startswith("error: ")
        end = await environment.step({"role": "assistant", "content": "YES"})
        assert (end.reward, end.done) == (None, True), "reward functions judge the answer"


@pytest.mark.long
async def test_episodes_share_a_server_and_wait_for_a_session_that_is_free(count_up: str) -> None:
    reached: list[float | None] = []

    async def play(number: int) -> None:
        async with opened(command=count_up, wait_s=DEADLINE_S) as environment:
            await environment.reset(Task(str(number), {"reset": {"target": 2}}))
            await environment.step(calling(called("act", {"amount": 1})))
            reached.append((await environment.step(calling(called("act", {"amount": 1})))).reward)

    await asyncio.gather(*map(play, range(6)))  # of which the server takes two at a time
    assert reached == [1.0] * 6
    async with opened(command=count_up) as one, opened(command=count_up) as two:
        await one.reset(Task("a", {}))
        await two.reset(Task("b", {}))
        async with opened(command=count_up, wait_s=0.1) as three:
            with pytest.raises(
                EpisodeError, match=r"no session free within 0.1 s .*max_concurrent_envs"
            ):
                await three.reset(Task("c", {}))


@pytest.mark.long
async def test_a_server_that_is_killed_is_a_fault_of_infrastructure_and_is_started_again(
    count_up: str,
) -> None:
    async with opened(command=count_up) as environment:
        await environment.reset(Task("a", {}))
        server = await SHARED.get(("", count_up), Server)
        server.kill()
        with pytest.raises(EpisodeError, match=r"OpenEnv server http://127.0.0.1"):
            await environment.step(calling(called("act", {"amount": 1})))
    async with opened(command=count_up) as environment:
        await environment.reset(Task("a", {}))
    assert (await SHARED.get(("", count_up), Server)) is not server


@pytest.fixture(scope="module")
def address(python: str) -> Iterator[str]:
    command = f"{python} {SERVERS / 'count_up.py'} {{port}}"
    server = Server("", command, start_timeout_s=DEADLINE_S)
    asyncio.run(server.start())
    yield server.url
    server.kill()


@pytest.mark.long
async def test_a_server_at_an_address_is_left_running(address: str) -> None:
    for target in (1, 2):
        async with opened(url=f"{address}/") as environment:
            await environment.reset(Task("a", {"reset": {"target": target}}))
            result = await environment.step(calling(called("act", {"amount": target})))
            assert (result.reward, result.done) == (1.0, True)
        with pytest.raises(EpisodeError, match="it refused to begin an episode"):
            async with opened(url=address) as environment:
                await environment.reset(Task("a", {"reset": {"target": 0}}))
