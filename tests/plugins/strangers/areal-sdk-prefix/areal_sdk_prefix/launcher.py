"""Plain subprocesses that join the run over TCP."""

import asyncio
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from areal_sdk.errors import ChildDiedError, ConfigError
from areal_sdk.launcher import (
    JOIN,
    START_TIMEOUT_S,
    TOKEN_VARIABLE,
    Child,
    KeptPort,
    LauncherSetup,
    Listener,
    ProcessSpec,
    Starter,
    rank_environment,
    split_address,
    waiting,
)

CONNECT_S = 120.0
"""Seconds for all processes of a job to connect."""
LOOK_EVERY_S = 0.2
"""Seconds between two looks at processes that have not joined yet."""


async def open_prefix(setup: LauncherSetup, *, words: str = "") -> "PrefixLauncher":
    """`words` stand before the command of each process."""
    try:
        prefix = shlex.split(words)
    except ValueError as exc:
        raise ConfigError(f"cluster.prefix.words = {words!r}: {exc}") from None
    cluster = setup.cluster
    listener = await Listener.open(cluster.listen_host or "127.0.0.1", cluster.listen_port)
    return PrefixLauncher(listener, prefix, setup.log_dir)


class PrefixLauncher:
    """Starts processes here, each in a session of its own."""

    def __init__(self, listener: Listener, prefix: Sequence[str], log_dir: Path) -> None:
        self.host = split_address(listener.address)[0]
        self._listener, self._prefix, self._log_dir = listener, prefix, log_dir
        self._processes: list[subprocess.Popen[bytes]] = []

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        job = secrets.token_hex(3)  # an old process that comes back is not taken for its successor
        with KeptPort() as kept:
            placed = {
                f"{spec.name}@{job}": replace(
                    spec,
                    env={
                        **rank_environment(rank, len(specs), master=self.host, port=kept.number),
                        **spec.env,
                    },
                )
                for rank, spec in enumerate(specs)
            }
            started = {name: self._start(name, spec) for name, spec in placed.items()}
            try:
                return await self._joined(placed, started)
            except BaseException:
                for process in started.values():
                    process.kill()
                raise

    async def aclose(self) -> None:
        await self._listener.aclose()
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, name: str, spec: ProcessSpec) -> "subprocess.Popen[bytes]":
        command = [*self._prefix, sys.executable, "-P", "-m", JOIN, self._listener.address, name]
        with self._log_of(spec).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **spec.environment(), TOKEN_VARIABLE: self._listener.token},
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    async def _joined(
        self,
        placed: Mapping[str, ProcessSpec],
        started: Mapping[str, "subprocess.Popen[bytes]"],
    ) -> list[Child]:
        """The processes as children. ChildDiedError as soon as one of them ends instead."""
        starters = {
            name: Starter(self._log_of(spec), started[name].send_signal)
            for name, spec in placed.items()
        }
        joining = asyncio.create_task(
            self._listener.accept(
                placed, timeout_s=CONNECT_S, start_timeout_s=START_TIMEOUT_S, starters=starters
            )
        )
        try:
            async with waiting(f"{len(placed)} processes to start", timeout_s=START_TIMEOUT_S * 2):
                while not joining.done():
                    ended = [
                        name for name, process in started.items() if process.poll() is not None
                    ]
                    await asyncio.wait({joining}, timeout=LOOK_EVERY_S)
                    if ended and not joining.done():
                        spec = placed[ended[0]]
                        raise ChildDiedError(f"{spec.name} did not join; log: {self._log_of(spec)}")
            return joining.result()
        finally:
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)

    def _log_of(self, spec: ProcessSpec) -> Path:
        self._log_dir.mkdir(parents=True, exist_ok=True)
        return self._log_dir / f"{spec.name}.log"
