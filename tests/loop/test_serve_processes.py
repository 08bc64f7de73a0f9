"""`areal-sdk serve --processes`, as a user runs it. The tests share one server of two processes."""

import asyncio
import io
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from areal_sdk.gateway.processes.shard import Shard
from tests.loop.runs import (
    SCRIPTED,
    children_of,
    refused,
    start_command,
    told,
)

KEYS = {name: f"sk-{name}-0123456789abcdef" for name in ("alice", "bob", "carol", "dave", "admin")}
SHARD = Shard(0, 2, users=KEYS)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
HOLD = {"model": "tiny", "messages": [{"role": "user", "content": "hold"}]}


@dataclass(frozen=True, slots=True)
class Served:
    process: "subprocess.Popen[str]"
    url: str
    directory: Path
    """The run and the files of the engine are here."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("served")
    users = directory / "users.toml"
    quotas = {
        "alice": "requests_per_minute = 5",
        "bob": "max_running = 2",
        "carol": "max_sessions = 3",
        "dave": "",
    }
    users.write_text(
        "".join(f'[{name}]\napi_key = "{KEYS[name]}"\n{q}\n' for name, q in quotas.items())
    )
    plugin = Path(__file__).with_name("held_engine.py")
    settings = {"run.dir": directory, "run.name": "run", "engine.name": "held"}
    process = start_command(
        *("serve", "--processes", "2", "--record", "--model", "tiny", "--port", "0"),
        *("--admin-key", KEYS["admin"], "--users", str(users), "--plugin", str(plugin)),
        *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
        env={"HELD_ENGINE": str(directory)},
    )
    assert process.stdout is not None
    try:
        yield Served(process, told(process.stdout, r"serving tiny at (\S+)"), directory)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


class Doors:
    """A connection to each of the two processes: requests come in where the test wants."""

    def __init__(self, served: Served) -> None:
        self._root = served.url.removesuffix("/v1")
        self._stack = AsyncExitStack()
        self._of: dict[int, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> "Doors":
        while len(self._of) < 2:  # the kernel chooses the process of a connection
            http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1))
            await self._stack.enter_async_context(http)
            _, answer = await self._send(http, "/v1/chat/completions", CHAT, KEYS["dave"])
            number = SHARD.of_reply(answer["id"])
            assert number is not None
            self._of[number] = http
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def call(
        self,
        path: str,
        body: Any = None,
        *,
        key: str = KEYS["dave"],
        door: int = 0,
        method: str | None = None,
        status: int = 200,
    ) -> Any:
        """The answer to a request that comes in at process `door`."""
        # A request that the process answers itself, so that the connection stays there.
        await self._send(self._of[door], "/v1/models", None, KEYS["dave"])
        given, answer = await self._send(self._of[door], path, body, key, method)
        assert given == status, answer
        return answer

    def stream(self, body: Any, *, key: str, door: int) -> Any:
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{self._root}/v1/chat/completions"
        return self._of[door].post(url, json={**body, "stream": True}, headers=headers)

    async def _send(
        self,
        http: aiohttp.ClientSession,
        path: str,
        body: Any,
        key: str,
        method: str | None = None,
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"}
        method = method or ("GET" if body is None else "POST")
        async with http.request(method, self._root + path, json=body, headers=headers) as reply:
            is_json = reply.content_type == "application/json"
            return reply.status, await (reply.json() if is_json else reply.text())


@pytest.fixture
async def doors(served: Served) -> AsyncIterator[Doors]:
    async with Doors(served) as opened:
        yield opened


def owned_by(number: int, prefix: str, *, user: str = "dave") -> str:
    """A session's name whose owner is that process."""
    names = (f"{prefix}-{i}" for i in range(100))
    return next(name for name in names if SHARD.of_session(f"{user}/{name}") == number)


SAMPLES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "tiny", "prompt": "hi"},
    "/v1/responses": {"model": "tiny", "input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 8},
}


@pytest.mark.parametrize("path", SAMPLES)
async def test_a_session_is_one_episode_wherever_its_requests_come_in(
    doors: Doors, path: str
) -> None:
    name = owned_by(1, path.strip("/").replace("/", "-"))
    key = f"{KEYS['dave']}/{name}"
    replies = [
        await doors.call(path, SAMPLES[path], key=key, door=0),
        await doors.call(path, SAMPLES[path], key=key, door=1),
        await doors.call(f"/s/{name}{path}", SAMPLES[path], door=0),
    ]
    assert {SHARD.of_reply(reply["id"]) for reply in replies} == {1}
    trace = await doors.call(f"/control/sessions/dave/{name}", key=KEYS["admin"], door=0)
    assert trace["num_turns"] == 3
    posted = {"turn": replies[0]["id"], "reward": 0.5}
    assert (await doors.call("/v1/reward", posted, door=0))["turn"] == 0
    await doors.call("/v1/end", {}, key=key, door=0)
    late = await doors.call(path, SAMPLES[path], key=key, door=0, status=409)
    assert late["error"].get("code", "session_closed") == "session_closed"


async def test_a_connection_moves_to_the_owner_of_the_session_that_it_is_used_for(
    served: Served,
) -> None:
    path = "/v1/chat/completions"
    async with Doors(served) as doors:
        for number in (1, 0, 1):
            key = f"{KEYS['dave']}/{owned_by(number, 'moves')}"
            for _ in range(3):
                given, answer = await doors._send(doors._of[0], path, CHAT, key)
                assert given == 200, answer
            _, answer = await doors._send(doors._of[0], path, CHAT, KEYS["dave"])
            assert SHARD.of_reply(answer["id"]) == number, "where the connection is now"
        http = doors._of[0]
        assert http.connector is not None
        (connections,) = http.connector._conns.values()
        assert len(connections) == 1, "it is the same connection"


async def test_bodies_in_pieces_and_bodies_that_are_too_long_pass_as_with_one_process(
    doors: Doors,
) -> None:
    headers = {"Authorization": f"Bearer {KEYS['dave']}/{owned_by(1, 'pieces')}"}
    headers["Content-Type"] = "application/json"
    path = f"{doors._root}/v1/chat/completions"

    async def pieces() -> AsyncIterator[bytes]:
        raw = json.dumps(CHAT).encode()
        for part in (raw[:10], raw[10:]):
            yield part
            await doors.call("/v1/models", door=1)  # the first piece has arrived meanwhile

    for _ in range(3):
        async with doors._of[0].post(path, data=pieces(), headers=headers) as reply:
            assert reply.status == 200, await reply.text()
    async with doors._of[0].post(
        path, data=io.BytesIO(bytes(40 * 2**20)), headers=headers
    ) as reply:
        assert reply.status == 413
    async with doors._of[0].post(path, data=b"{", headers=headers) as reply:
        assert reply.status == 400


async def test_stored_responses_counts_and_models_are_found_from_anywhere(doors: Doors) -> None:
    key = f"{KEYS['dave']}/{owned_by(1, 'stored')}"
    first = await doors.call("/v1/responses", SAMPLES["/v1/responses"], key=key, door=0)
    again = {**SAMPLES["/v1/responses"], "previous_response_id": first["id"]}
    await doors.call("/v1/responses", again, key=key, door=0)
    assert (await doors.call(f"/v1/responses/{first['id']}", key=key, door=0))["id"] == first["id"]
    await doors.call("/v1/messages/count_tokens", CHAT, key=key, door=0)
    assert (await doors.call("/v1/models", key=key, door=0))["data"][0]["id"] == "tiny"
    await doors.call("/health", door=0)


async def test_opened_sessions_are_reached_by_key_address_and_id(doors: Doors) -> None:
    admin = KEYS["admin"]
    name = next(f"mine-{i}" for i in range(100) if SHARD.of_group(f"mine-{i}") == 1)
    group = await doors.call(
        "/control/sessions", {"id": name, "group_size": 3}, key=admin, door=0, status=201
    )
    assert [s["id"] for s in group["sessions"]] == [f"{name}/{i}" for i in range(3)]
    for session in group["sessions"]:
        await doors.call("/v1/chat/completions", CHAT, key=session["api_key"], door=0)
        slug = session["base_url"].split("/s/")[1]
        await doors.call(f"/s/{slug}/chat/completions", CHAT, key="", door=0)
        one = f"/control/sessions/{session['id']}"
        assert (await doors.call(one, key=admin, door=0))["num_turns"] == 2
        await doors.call(f"{one}/reward", {"reward": 1.0}, key=admin, door=0)
    for door in (0, 1):
        listed = await doors.call("/control/sessions", key=admin, door=door)
        assert {f"{name}/1", f"{name}/2"} <= {s["id"] for s in listed["sessions"]} | {
            s["id"] for s in group["sessions"]
        }
    taken = {"id": name, "group_size": 3}
    await doors.call("/control/sessions", {"id": "dave", "group_size": 2}, key=admin, status=400)
    await doors.call("/control/sessions", taken, key=KEYS["dave"], status=401)


async def test_a_stream_passes_as_it_comes_and_its_owner_learns_that_its_client_left(
    doors: Doors, served: Served
) -> None:
    key = f"{KEYS['dave']}/{owned_by(1, 'left')}"
    async with doors.stream(HOLD, key=key, door=0) as reply:
        assert b"data: " in await reply.content.readany(), "the engine holds the rest"
        assert not (served.directory / "closed").exists()
        reply.close()
    async with asyncio.timeout(60):
        while not (served.directory / "closed").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)


async def test_processes_together_keep_to_the_quotas(doors: Doors, served: Served) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:

        async def ask(user: str, body: Any, suffix: str = "") -> int:
            headers = {"Authorization": f"Bearer {KEYS[user]}{suffix}"}
            url = f"{served.url}/chat/completions"
            async with http.post(url, json=body, headers=headers) as reply:
                await reply.read()
                return reply.status

        asked = await asyncio.gather(*(ask("alice", CHAT) for _ in range(16)))
        assert Counter(asked) == {200: 5, 429: 11}
        opened = await asyncio.gather(*(ask("carol", CHAT, f"/c-{i}") for i in range(12)))
        assert Counter(opened) == {200: 3, 429: 9}
        async with doors.stream(HOLD, key=KEYS["bob"], door=0) as one:
            await one.content.readany()
            async with doors.stream(HOLD, key=KEYS["bob"], door=1) as other:
                await other.content.readany()
                assert await ask("bob", CHAT) == 429
                one.close()
                other.close()


async def test_metrics_are_those_of_all_processes(doors: Doors) -> None:
    async def turns(door: int) -> int:
        text = await doors.call("/metrics", key=KEYS["admin"], door=door)
        return int(text.split("\nareal_sdk_turns_total ")[1].split()[0])

    before = await turns(0)
    for door in (0, 1):
        await doors.call("/v1/chat/completions", CHAT, door=door)
    assert await turns(0) == await turns(1) == before + 2
    await doors.call("/peer/counts", key=KEYS["admin"], status=404)


async def test_pausing_is_the_main_processs_and_versions_are_known_everywhere(
    doors: Doors,
) -> None:
    for door in (0, 1):
        for what in ("pause", "resume"):
            await doors.call(f"/control/{what}", {}, key=KEYS["admin"], door=door)
        shown = await doors.call("/control/weights", key=KEYS["admin"], door=door)
        assert shown == {"version": 0}


async def test_the_sessions_of_a_killed_process_are_lost_and_the_others_go_on(
    served: Served,
) -> None:
    lost, kept = (f"{KEYS['dave']}/{owned_by(number, 'kill')}" for number in (1, 0))
    fresh = f"{KEYS['dave']}/{owned_by(1, 'fresh')}"
    path = "/v1/chat/completions"
    async with Doors(served) as doors:
        for key in (lost, kept):
            await doors.call(path, CHAT, key=key)
        (victim,) = children_of(served.process.pid, "gateway-1")
        os.kill(victim, signal.SIGKILL)
        await doors.call(path, CHAT, key=kept)
        async with asyncio.timeout(120):
            while (answer := await doors._send(doors._of[0], path, CHAT, lost))[0] != 410:
                assert answer[0] == 503, answer
                assert answer[1]["error"]["code"] == "gateway_lost"
                await asyncio.sleep(0.05)
        assert answer[1]["error"]["code"] == "session_lost"
        await doors.call(path, CHAT, key=kept)
        await doors.call(path, CHAT, key=fresh)


@pytest.mark.parametrize(
    ("settings", "cure"),
    [
        (("--upstream", "http://127.0.0.1:9/v1"), "leave serve.processes out"),
        (("--learn", "--set", "rollout.nodes=2"), "leave rollout.nodes out"),
        (("--host", "0.0.0.0"), "--admin-key"),
    ],
)
def test_what_cannot_be_combined_is_refused_with_its_cure(
    settings: tuple[str, ...], cure: str
) -> None:
    command = ("serve", "--processes", "2", "--model", "tiny", "--port", "0", *SCRIPTED)
    assert cure in refused(*command, *settings)


def test_a_port_that_another_server_has_is_refused(served: Served) -> None:
    port = served.url.removesuffix("/v1").rpartition(":")[2]
    command = ("serve", "--processes", "2", "--model", "tiny", "--port", port, *SCRIPTED)
    assert "choose another port" in refused(*command)
