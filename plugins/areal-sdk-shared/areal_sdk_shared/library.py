"""`Library`: a library that plays tasks by itself, in a Python of its own, with the episode's session as its model.

The package of the library brings a script for that Python. `SCRIPT list` reads an order and writes a task a line, each
with a `key` of its content. `SCRIPT serve` plays, as `player.py` describes; its answers have a `reward` and `metrics`, or an
`error`.
"""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from areal_sdk import ConfigError, EpisodeContext, Outcome
from areal_sdk.environment import is_held_out
from areal_sdk.errors import AgentError
from areal_sdk.launcher import make_environment
from areal_sdk_shared.player import JSON, Player
from areal_sdk_shared.servers import SharedServers

logger = logging.getLogger(__name__)

_LAST_WORDS = 800


class Library:
    """A library with packages that others cannot have. It is never installed beside the trainer."""

    def __init__(
        self,
        name: str,
        *,
        title: str,
        script: Path,
        modules: Sequence[str],
        requirements: Sequence[str],
        most_episodes: int = sys.maxsize,
    ) -> None:
        """`name` is that of its dataset, whose options are `[tasks.NAME]`; `title` names the library for users.

        Where `modules` are installed, this Python plays; else a virtual environment with `requirements`, of which the
        first is the library and its version. A process plays at most `most_episodes`.
        """
        self.name = name
        self.title = title
        self.most_episodes = most_episodes
        self._script = script
        self._modules = modules
        self._requirements = requirements
        self._players: SharedServers[Player] = SharedServers()
        self._num_played: Counter[tuple[str, ...]] = Counter()

    def python(self, named: str, more: Sequence[str] = ()) -> str:
        """The program that plays: `named`, this one, or that of a virtual environment, which also gets `more`."""
        if named:
            program = shutil.which(str(Path(named).expanduser()))
            if program is None:
                raise ConfigError(
                    f"[tasks.{self.name}] python = {named!r}: there is no such program"
                )
            return program
        if all(find_spec(module) is not None for module in self._modules):
            return sys.executable
        wanted = [*self._requirements, *more]
        digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:8]
        version = wanted[0].partition("==")[2]
        shared = Path(sys.prefix) / "share" / f"areal-sdk-{self.name}"
        directory = shared / f"{version}-{digest}"
        try:
            found = make_environment(directory, wanted, about=", ".join(wanted), say=logger.warning)
        except ConfigError as exc:
            raise ConfigError(
                f"{exc}: or name a Python that has {self.title} ([tasks.{self.name}] python)"
            ) from None
        return str(found)

    def tasks(self, python: str, order: JSON, *, what: str, path: Sequence[str] = ()) -> list[JSON]:
        """The tasks of an order as the library lists them. `what` names them for errors."""
        ended = subprocess.run(
            [python, str(self._script), "list"],
            input=json.dumps(order) + "\n",
            capture_output=True,
            text=True,
            env=_environment(path),
        )
        if ended.returncode:
            raise ConfigError(
                f"{what} cannot be listed by {python}: {ended.stderr.strip()[-_LAST_WORDS:]}"
            )
        return [json.loads(line) for line in ended.stdout.splitlines()]

    def is_held_out(self, key: str, share: float) -> bool:
        """Whether a task is for evaluations, of which `share` of all are; chosen by the key of its content."""
        return is_held_out(f"{self.name} {key}", share)

    async def play(
        self, order: JSON, context: EpisodeContext, *, python: str, path: Sequence[str] = ()
    ) -> Outcome | None:
        """The verdict of the library on an episode that it plays; None if it abstains."""
        player = await self.player(python, path)
        self._num_played[python, *path] += 1
        answer = await player.play({**order, "base_url": context.base_url, "model": context.model})
        if "error" in answer:
            raise AgentError(f"{self.title}: {answer['error']}")
        if answer["reward"] is None:
            return None
        return Outcome.scored(float(answer["reward"]), metrics=answer["metrics"])

    async def player(self, python: str, path: Sequence[str] = ()) -> Player:
        """The running process: started if there is none, or if the last one has ended or played enough.

        `path`: directories of modules. One that has played enough still ends its last episodes.
        """
        turn = self._num_played[python, *path] // self.most_episodes
        words = [python, str(self._script), "serve"]
        return await self._players.get(
            (python, *path, turn), lambda: Player(words, title=self.title, env=_environment(path))
        )

    async def aclose(self) -> None:
        """End the processes of this event loop now."""
        await self._players.aclose()


def check_share(held_out: float) -> None:
    """Raise ConfigError unless the option `held_out` is a share."""
    is_held_out("", held_out)  # refuses what is none


def _environment(path: Sequence[str]) -> dict[str, str]:
    """The variables of this process, with directories of modules before those that it has."""
    found = [*path, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found)} if found else {**os.environ}
