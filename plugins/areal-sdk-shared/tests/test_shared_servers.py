"""Servers that episodes share: one for each loop and key, started again if lost, ended with the loop."""

import asyncio

from areal_sdk_shared.servers import SharedServers


class Server:
    def __init__(self, log: list[str]) -> None:
        self.log, self.is_lost = log, False

    async def start(self) -> None:
        await asyncio.sleep(0)
        self.log.append("start")

    async def aclose(self) -> None:
        self.log.append("close")

    def kill(self) -> None:
        self.log.append("kill")


async def test_episodes_that_begin_together_start_one_server_and_a_lost_one_is_replaced() -> None:
    servers: SharedServers[Server] = SharedServers()
    log: list[str] = []
    one, *others = await asyncio.gather(
        *(servers.get("key", lambda: Server(log)) for _ in range(3))
    )
    assert others == [one, one]
    assert await servers.get("another", lambda: Server(log)) is not one
    one.is_lost = True
    assert await servers.get("key", lambda: Server(log)) is not one
    assert log == ["start", "start", "close", "start"]
    await servers.aclose()
    assert log[4:] == ["close", "close"]


def test_a_loop_that_ends_closes_its_servers() -> None:
    servers: SharedServers[Server] = SharedServers()
    log: list[str] = []

    async def play() -> None:
        await servers.get("key", lambda: Server(log))

    asyncio.run(play())
    asyncio.run(play())
    assert log == ["start", "close", "start", "close"]
