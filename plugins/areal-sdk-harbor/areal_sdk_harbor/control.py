"""Controls: the verifier of a task, tried where no agent has been.

If a verifier gives no verdict after an agent, either the task is broken, or the agent's programs broke the verifier: they
hang when they are tested, fill the disk, or stop what should run them. A verifier that works without the agent tells
which. Without this difference an agent could avoid a verdict of 0 by breaking its verifier.
"""

import asyncio

from areal_sdk_harbor.definition import Definition
from areal_sdk_harbor.trial import Room, ready, verify


class Controls:
    """The verdicts on verifiers, each found once."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._found: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def known(self, task: Definition) -> str:
        """The reason why the verifier is broken, if that is known; else empty."""
        return self._found.get(str(task.path), "")

    async def why_broken(self, task: Definition) -> str:
        """The reason why the verifier gives no verdict without an agent; empty if it gives one."""
        place = str(task.path)
        async with self._locks.setdefault(place, asyncio.Lock()):
            if place not in self._found:
                async with ready(task, self._room) as machine:
                    verdict = await verify(machine, task)
                self._found[place] = verdict.why
            return self._found[place]
