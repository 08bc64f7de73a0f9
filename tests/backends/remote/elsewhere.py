"""A launcher whose processes do not see some directories of this machine, as on another one."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from areal_sdk.launcher import rank_environment
from areal_sdk.process import Child, ProcessSpec
from areal_sdk.process.network.handshake import TOKEN_VARIABLE
from areal_sdk.process.network.listen import KeptPort, Listener, Starter

OWN_MOUNTS = ["unshare", "--mount"]
START_S = 240.0


def can_mount() -> bool:
    command = [*OWN_MOUNTS, "mount", "-t", "tmpfs", "none", "/dev/shm"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


class Elsewhere:
    """Starts every process in a mount namespace of its own, where the `hidden` directories are empty."""

    host = "127.0.0.1"

    def __init__(self, listener: Listener, hidden: Sequence[Path], log_dir: Path) -> None:
        self._listener, self._hidden, self._log_dir = listener, hidden, log_dir
        self._processes: list[subprocess.Popen[bytes]] = []

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        with KeptPort() as kept:
            placed = {f"{spec.name}@{kept.number}": spec for spec in specs}
            starters = {
                name: self._start(
                    name,
                    spec,
                    rank_environment(rank, len(specs), master=self.host, port=kept.number),
                )
                for rank, (name, spec) in enumerate(placed.items())
            }
            return await self._listener.accept(
                placed, timeout_s=START_S, start_timeout_s=START_S, starters=starters
            )

    async def aclose(self) -> None:
        await self._listener.aclose()
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, name: str, spec: ProcessSpec, ranks: dict[str, str]) -> Starter:
        log = self._log_dir / f"{spec.name}.log"
        mounts = [f"mount -t tmpfs none {shlex.quote(str(path))}" for path in self._hidden]
        joins = [sys.executable, "-m", "areal_sdk.join", self._listener.address, name]
        command = " && ".join([*mounts, f"exec {shlex.join(joins)}"])
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*OWN_MOUNTS, "sh", "-c", command],
                env={**os.environ, **ranks, TOKEN_VARIABLE: self._listener.token},
                stdout=output,
                stderr=output,
            )
        self._processes.append(process)
        return Starter(log, process.send_signal)
