"""Ranks started by the user under torchrun: they connect to the main process.

    areal-sdk train agent.py --launcher torchrun      # prints the line to run
    AREAL_SDK_TOKEN=... torchrun --nproc-per-node 8 -m areal_sdk.launch.torchrun HOST:PORT

The main process is not one of the ranks. torchrun restarts and logs its ranks as always.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from areal_sdk.errors import ProcessError
from areal_sdk.launch.local import LocalLauncher
from areal_sdk.launcher import START_TIMEOUT_S, LauncherSetup
from areal_sdk.process import Child, ProcessSpec
from areal_sdk.process.network.handshake import TOKEN_VARIABLE
from areal_sdk.process.network.join import connect_and_run
from areal_sdk.process.network.listen import Listener
from areal_sdk.telemetry.live.waits import waiting

CONNECT_TIMEOUT_S = 600.0
"""Seconds for all of torchrun's ranks to connect: its agents start minutes apart."""
SLACK_S = 30.0
"""Seconds that the launcher waits longer than its listener, so that the listener's error is raised."""


async def open_torchrun(setup: LauncherSetup) -> "TorchrunLauncher":
    cluster = setup.cluster
    listener = await Listener.open(cluster.listen_host or "127.0.0.1", cluster.listen_port)
    launcher = TorchrunLauncher(listener, log_dir=setup.log_dir)
    setup.say(f"start the {setup.num_ranks} trainer ranks with: {launcher.command}")
    return launcher


class TorchrunLauncher:
    """Takes in the ranks that torchrun started, by name: spec `i` goes to the rank `i`.

    Other processes than trainer ranks start on this machine.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        log_dir: Path,
        timeout_s: float = CONNECT_TIMEOUT_S,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._listener = listener
        self._here = LocalLauncher(log_dir=log_dir)
        self.host = self._here.host  # of nodes, which are here
        self._timeout_s = timeout_s
        self.start_timeout_s = start_timeout_s

    @property
    def command(self) -> str:
        """The line to run on each machine; the token is secret."""
        return (
            f"{TOKEN_VARIABLE}={self._listener.token} torchrun --nproc-per-node N "
            f"-m areal_sdk.launch.torchrun {self._listener.address}"
        )

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        if specs[0].role != "trainer":
            return await self._here.launch(specs)
        ranks = {rank_name(rank): spec for rank, spec in enumerate(specs)}
        what = f"{len(ranks)} ranks from torchrun to connect to {self._listener.address}"
        async with waiting(what, timeout_s=self._timeout_s, slack_s=SLACK_S):
            await self._listener.wait_for(ranks, timeout_s=self._timeout_s)
        what = f"{len(ranks)} ranks from torchrun to start"
        async with waiting(what, timeout_s=self.start_timeout_s, slack_s=SLACK_S):
            return await self._listener.accept(
                ranks, timeout_s=self._timeout_s, start_timeout_s=self.start_timeout_s
            )

    async def aclose(self) -> None:
        await self._listener.aclose()


def rank_name(rank: int) -> str:
    return f"rank-{rank}"


def main(arguments: Sequence[str]) -> int:
    """Run one rank, which torchrun has started."""
    token, rank = os.environ.get(TOKEN_VARIABLE), os.environ.get("RANK")
    if len(arguments) != 1 or not token or rank is None:
        sys.stderr.write(
            "Started by torchrun, with the address and the token that the run prints:\n"
            f"  {TOKEN_VARIABLE}=... torchrun --nproc-per-node N "
            "-m areal_sdk.launch.torchrun HOST:PORT\n"
        )
        return 2
    try:
        return connect_and_run(
            arguments[0],
            token=token,
            name=rank_name(int(rank)),
            connect_timeout_s=CONNECT_TIMEOUT_S,
            start_timeout_s=CONNECT_TIMEOUT_S,
        )
    except (ProcessError, ValueError) as exc:
        sys.stderr.write(f"rank {rank}: {exc}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
