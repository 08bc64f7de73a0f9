"""A gateway process over a scripted engine: the entry that the tests of gateway processes launch.

It notes its pid and the news that it hears in `args["notes"]`, one line each.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from areal_sdk.engine import EngineClient, GenerateChunk, GenerateRequest
from areal_sdk.errors import EngineError
from areal_sdk.gateway.app import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.process import JSON, Channel
from areal_sdk.rollout.gateways.server import GatewayServer, SharedEngine
from areal_sdk.testing import ScriptedEngine


class Hearer(EngineClient):
    """Notes the news. Refuses the first ones with a `refusal`."""

    has_refused = False

    def __init__(self, scripted: ScriptedEngine, notes: Path) -> None:
        super().__init__(scripted.info, name="gateway")
        self._scripted = scripted
        self._notes = notes

    async def told(self, state: Mapping[str, Any]) -> None:
        if state.get("refusal") and not self.has_refused:
            self.has_refused = True
            raise EngineError(state["refusal"])
        self.note(f"heard {state['number']}")

    def note(self, line: str) -> None:
        with self._notes.open("a") as file:
            file.write(f"{line}\n")

    @property
    def version(self) -> int:
        return 0

    def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        return self._scripted.stream(request)

    async def aclose(self) -> None:
        await self._scripted.aclose()


class NotingEngine(SharedEngine):
    """Notes the versions that it hears of."""

    def hear_of(self, version: int) -> None:
        super().hear_of(version)
        assert isinstance(self.client, Hearer)
        self.client.note(f"version {version}")


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    asyncio.run(_serve(channel, args))


async def _serve(channel: Channel, args: Mapping[str, JSON]) -> None:
    model_dir, notes = Path(args["model_dir"]), Path(args["notes"])
    client = Hearer(ScriptedEngine("four", model_dir=model_dir), notes)
    engine = NotingEngine(client)
    gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="tiny")
    await gateway.start()
    server = GatewayServer(channel, engine, pack=lambda live: ())
    channel.ready({})
    await server.run(gateway)
    await gateway.aclose()
