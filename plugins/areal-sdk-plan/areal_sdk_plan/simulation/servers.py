"""A simulated inference server: continuous batching in virtual time.

All running requests advance together, a token a decoding step, and a step takes longer the more of
them there are. So one clock that counts decoding steps describes all of them: a request that came at
step c with n tokens to sample ends when the clock reaches c + n, however the pace changes meanwhile.
Prefill stops the clock.
"""

import heapq
import math
from collections import OrderedDict, deque
from functools import lru_cache
from itertools import count

from areal_sdk.flow import MAX_IMBALANCE
from areal_sdk_plan.simulation.play import Player
from areal_sdk_plan.speeds import DecodeCurve, EngineSpeed

MAX_PREFIXES = 512
"""Maximum number of groups whose common prompt a server remembers."""
_EPSILON = 1e-9


class SimulatedServer:
    """Advances by `advance(now)`; every change asks the owner to look at `next_end` again."""

    __slots__ = (
        "_backlog_s",
        "_clock",
        "_context",
        "_ends",
        "_prefixes",
        "_reserved",
        "_steps",
        "_tickets",
        "_updated_at",
        "busy_s",
        "index",
        "is_closed",
        "is_down",
        "is_held",
        "num_running",
        "pace",
        "slot_s",
        "speed",
        "stamp",
        "version",
        "waiting",
    )

    def __init__(self, index: int, speed: EngineSpeed) -> None:
        self.index = index
        self.speed = speed
        self.version = 0
        self.pace = 1.0
        """Speed of the server, below 1 while others take its cores."""
        self.is_held = False
        """New weights come in, or the trainer has the device."""
        self.is_closed = False
        """No request begins."""
        self.is_down = False
        self.num_running = 0
        self.waiting: deque[Player] = deque()
        self.stamp = 0
        """Number of plans for the next end of a request; an older plan is void."""
        self.busy_s = 0.0
        self.slot_s = 0.0
        """Slots in use, integrated over time."""
        self._updated_at = 0.0
        self._clock = 0.0
        self._backlog_s = 0.0
        """Prefill to do before the clock goes on."""
        self._context = 0.0
        self._reserved = 0
        self._tickets = 0
        self._ends: list[tuple[float, int, Player]] = []
        self._prefixes: OrderedDict[int, None] = OrderedDict()
        self._steps = _step_times(speed.decode, min(speed.max_slots, 4096))

    @property
    def load(self) -> int:
        return self.num_running + len(self.waiting)

    @property
    def is_computing(self) -> bool:
        return self.num_running > 0 and not self.is_held and not self.is_down

    def advance(self, now: float) -> None:
        """Bring clock and books to `now`."""
        elapsed, self._updated_at = now - self._updated_at, now
        if elapsed <= 0.0 or not self.is_computing:
            return
        self.busy_s += elapsed
        self.slot_s += elapsed * self.num_running
        worked = elapsed * self.pace
        prefilled = min(worked, self._backlog_s)
        self._backlog_s -= prefilled
        self._clock += (worked - prefilled) / self._step_s()

    def next_end(self) -> float:
        """The time at which the next request ends, if nothing changes before."""
        if not self.is_computing:
            return math.inf
        ends = self._ends
        while ends[0][2].ticket != ends[0][1]:
            heapq.heappop(ends)
        left_s = self._backlog_s + max(0.0, ends[0][0] - self._clock) * self._step_s()
        return self._updated_at + left_s / self.pace

    def send(self, player: Player) -> None:
        """A request arrives; `advance` came first."""
        player.server = self
        self.waiting.append(player)
        self._admit()

    def collect(self) -> list[Player]:
        """The requests that have ended, at a time that `next_end` gave."""
        ended: list[Player] = []
        ends = self._ends
        while ends[0][2].ticket != ends[0][1]:
            heapq.heappop(ends)
        # By rounding the clock may be short of it, by so little that time could not go on.
        self._clock, self._backlog_s = max(self._clock, ends[0][0]), 0.0
        reached = self._clock + _EPSILON
        while ends and (ends[0][0] <= reached or ends[0][2].ticket != ends[0][1]):
            _, ticket, player = heapq.heappop(ends)
            if player.ticket == ticket:
                self._release(player)
                ended.append(player)
        if ended:
            self._admit()
        return ended

    def cancel(self, player: Player) -> None:
        """Cancel the request: nobody wants it any more."""
        if player.ticket:
            self._release(player)
            self._admit()
        elif player.server is self:
            self.waiting.remove(player)
        player.server = None

    def hold(self, *, drains: bool = False) -> None:
        """Begin no request. Stop the running ones, or let them end first if the server `drains`."""
        self.is_closed, self.is_held = True, not drains

    def take_weights(self, version: int) -> None:
        """Take new weights: caches become void, and requests go on."""
        self.version = version
        self._prefixes.clear()
        if self.speed.recomputes:
            self._backlog_s += self._context * self.speed.prefill_s
        self.is_closed = self.is_held = False
        self._admit()

    def fail(self) -> list[Player]:
        """Lose the server. Returns the requests that it had, which must go elsewhere."""
        self.is_down = True
        lost = [player for _, ticket, player in self._ends if player.ticket == ticket]
        for player in lost:
            player.num_left = max(1, math.ceil(player.ends_at - self._clock))
            player.num_new = player.num_context + player.turn.num_output - player.num_left
            self._release(player)
        lost += self.waiting
        self.waiting.clear()
        self._ends.clear()
        self._prefixes.clear()
        self._backlog_s = 0.0
        return lost

    def recover(self, version: int) -> None:
        self.is_down = False
        self.version = version

    # --- internals ---------------------------------------------------------------------------

    def _step_s(self) -> float:
        num = self.num_running
        steps = self._steps
        seconds = steps[num] if num < len(steps) else self.speed.decode.step_s(num)
        return seconds + self.speed.kv_read_s * self._context

    def _admit(self) -> None:
        speed = self.speed
        while self.waiting and not self.is_closed and self.num_running < speed.max_slots:
            needed = self.waiting[0].num_context + self.waiting[0].num_left
            if speed.kv_tokens and self.num_running and self._reserved + needed > speed.kv_tokens:
                return
            self._begin(self.waiting.popleft())

    def _begin(self, player: Player) -> None:
        self._tickets += 1
        player.ticket = self._tickets
        player.ends_at = self._clock + player.num_left
        self.num_running += 1
        self._reserved += player.num_context + player.num_left
        self._context += player.num_context + 0.5 * player.num_left
        self._backlog_s += self.speed.prefill_s * self._num_computed(player)
        player.sampled_under(self.version)
        heapq.heappush(self._ends, (player.ends_at, player.ticket, player))

    def _release(self, player: Player) -> None:
        player.ticket = 0
        player.server = None
        self.num_running -= 1
        self._reserved -= player.num_context + player.num_left
        self._context -= player.num_context + 0.5 * player.num_left
        if not self.num_running:
            self._context, self._reserved = 0.0, 0

    def _num_computed(self, player: Player) -> int:
        shared = player.turn.num_shared
        if not shared:
            return player.num_new
        group = player.group.order
        if group in self._prefixes:
            self._prefixes.move_to_end(group)
            return max(1, player.num_new - shared)
        self._prefixes[group] = None
        if len(self._prefixes) > MAX_PREFIXES:
            self._prefixes.popitem(last=False)
        return player.num_new


@lru_cache(maxsize=16)
def _step_times(curve: DecodeCurve, most: int) -> tuple[float, ...]:
    """Seconds of a decoding step by the number of requests, from none on."""
    return (math.inf, *(curve.step_s(n) for n in range(1, most + 1)))


class ServerPool:
    """Placement as `Pool` of a remote engine does it: a session stays where its prefix is cached.

    Servers are kept by their load, so that a choice among hundreds costs the same as among two.
    """

    def __init__(self, servers: list[SimulatedServer]) -> None:
        self.servers = servers
        self.num_up = len(servers)
        places = OrderedDict.fromkeys(range(len(servers)))
        self._by_load: dict[int, OrderedDict[int, None]] = {0: places}
        self._load_of = [0] * len(servers)
        self._least = 0
        """Lower bound of all loads: no server has less."""

    def choose(self, home: SimulatedServer | None) -> SimulatedServer | None:
        """None while no server is up."""
        if not self.num_up:
            return None
        while not self._by_load.get(self._least):
            self._least += 1
        least = self._first_up()
        if home is not None and not home.is_down and home.load - least.load <= MAX_IMBALANCE:
            return home
        return least

    def note(self, server: SimulatedServer) -> None:
        """Note that the load of a server changed."""
        index, load = server.index, server.load
        before = self._load_of[index]
        if before == load:
            return
        del self._by_load[before][index]
        self._by_load.setdefault(load, OrderedDict())[index] = None
        self._load_of[index] = load
        self._least = min(self._least, load)

    def _first_up(self) -> SimulatedServer:
        for load in count(self._least):
            for index in self._by_load.get(load, ()):
                if not self.servers[index].is_down:
                    return self.servers[index]
        raise AssertionError("a server is up")
