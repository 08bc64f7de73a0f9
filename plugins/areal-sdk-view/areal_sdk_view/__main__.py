"""`python -m areal_sdk_view RUNS SOCKET`: the process of the observer. It ends when its input does."""

import asyncio
import os
import socket
import sys
from pathlib import Path

from areal_sdk_view.server import TOKEN_VARIABLE, make_app, start

NICE = 10
"""The run's processes come first."""


async def main(runs: Path, listening: socket.socket) -> None:
    token = os.environ.pop(TOKEN_VARIABLE)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            ended.set()

    loop.add_reader(sys.stdin.fileno(), read)
    runner, _ = await start(make_app([runs], token=token), at=listening, token=token)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
        await runner.cleanup()


if __name__ == "__main__":
    os.nice(NICE)
    asyncio.run(main(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))))
