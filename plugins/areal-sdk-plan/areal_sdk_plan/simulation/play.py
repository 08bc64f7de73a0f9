"""An episode and its group while the simulation plays them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from areal_sdk.flow import DropReason
from areal_sdk_plan.workload import EpisodeShape, TurnShape

if TYPE_CHECKING:
    from areal_sdk_plan.simulation.servers import SimulatedServer


class Player:
    """One episode on its way: which turn it is in, and where."""

    __slots__ = (
        "began_at",
        "ends_at",
        "first_version",
        "group",
        "home",
        "index",
        "is_over",
        "last_version",
        "num_context",
        "num_left",
        "num_new",
        "server",
        "shape",
        "ticket",
        "turn",
    )

    def __init__(self, group: "SimulatedGroup", shape: EpisodeShape, *, began_at: float) -> None:
        self.group = group
        self.shape = shape
        self.began_at = began_at
        self.index = -1
        """Index of the turn that the player is in."""
        self.turn: TurnShape = shape.turns[0] if shape.turns else TurnShape(0, 0, 0)
        self.num_context = 0
        self.num_new = 0
        self.num_left = 0
        """Tokens that the turn has still to sample."""
        self.ticket = 0
        """Ticket of the running request; 0: none."""
        self.ends_at = 0.0
        """The time, by the clock of the turn's server, when the turn ends."""
        self.server: SimulatedServer | None = None
        """The server at which the request waits or runs."""
        self.home: SimulatedServer | None = None
        """The server that has the prefix cached."""
        self.first_version: int | None = None
        self.last_version: int | None = None
        self.is_over = False

    def next_turn(self) -> TurnShape | None:
        """The turn that comes next; None after the last."""
        self.index += 1
        if self.index >= len(self.shape.turns):
            return None
        self.turn = turn = self.shape.turns[self.index]
        self.num_context, self.num_new, self.num_left = (
            turn.num_prompt,
            turn.num_new,
            turn.num_output,
        )
        return turn

    def sampled_under(self, version: int) -> None:
        """Note that the next tokens come from `version`."""
        if self.first_version is None:
            self.first_version = version
            self.group.note_version(version)
        self.last_version = version

    @property
    def oldest_version(self) -> int | None:
        return self.first_version

    def masked(self, *, before: int) -> Self | None:
        """The episode without the tokens sampled before that version; None if no other is left."""
        if self.last_version is None or self.last_version < before:
            return None
        self.first_version = before
        return self


@dataclass(slots=True, eq=False)
class SimulatedGroup:
    """Siblings of one task, pending or finished."""

    order: int
    players: list[Player] = field(default_factory=list)
    members: list[Player] = field(default_factory=list)
    """Members that ended with a reward."""
    num_ended: int = 0
    give_up: DropReason | None = None
    """The reason why the group will not be trained, if that is already certain."""
    is_idle: bool = False
    """Whether the group teaches nothing."""
    oldest_version: int | None = None
    """Version of the oldest token sampled so far. It is kept, because the rules ask for it often."""

    @property
    def size(self) -> int:
        return len(self.players)

    def running(self) -> Iterable[tuple[int, int | None]]:
        """The siblings that are not over: number, and version of the first token."""
        return [(n, p.first_version) for n, p in enumerate(self.players) if not p.is_over]

    def finished(self) -> Self:
        return self

    def with_members(self, members: Sequence[Player]) -> Self:
        """The group when its other members are dropped."""
        self.members = list(members)
        self.forget_lost()
        return self

    def note_version(self, version: int) -> None:
        if self.oldest_version is None:
            self.oldest_version = version

    def forget_lost(self) -> None:
        """Take the age of the group from its other siblings, because one was dropped."""
        alive = (p for p in self.players if not p.is_over or p in self.members)
        versions = [p.first_version for p in alive if p.first_version is not None]
        self.oldest_version = min(versions, default=None)
