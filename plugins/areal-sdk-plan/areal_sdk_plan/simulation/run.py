"""A discrete-event simulation of a run: gate, groups, turns, tools, servers, trainer, weights.

    has room -> group of players -> request -> server -> tool -> request ... -> end -> buffer
       ^                                                                             |
       +--- weights served <- publish <- step of the trainer <------ cut <-----------+

Time is simulated, nothing waits. The same setup and seed give the same forecast.
"""

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from areal_sdk import ConfigError
from areal_sdk.flow import DropReason
from areal_sdk_plan.simulation.buffer import SimulatedBatch, SimulatedBuffer, mark_idle
from areal_sdk_plan.simulation.cores import SharedCores
from areal_sdk_plan.simulation.forecast import Forecast, StepRecord
from areal_sdk_plan.simulation.losses import LossRates
from areal_sdk_plan.simulation.play import Player, SimulatedGroup
from areal_sdk_plan.simulation.servers import ServerPool, SimulatedServer
from areal_sdk_plan.simulation.setup import Setup
from areal_sdk_plan.simulation.under_way import BatchWait, Delivery, StepUnderWay

PATIENCE = 300
"""Number of events for each model call of a batch, after which a run without a step makes no progress."""


def simulate(setup: Setup, *, steps: int = 40, warm: int = 5, seed: int = 0) -> Forecast:
    """Simulate `steps` steps of the run; the first `warm` of them are not counted."""
    if not 0 <= warm < steps:
        raise ConfigError(f"warm = {warm} steps of {steps} leave none to count")
    run = _Simulation(setup, steps=steps, warm=warm, seed=seed)
    run.play()
    return run.forecast()


def expected_step_s(setup: Setup, *, steps: int, warm: int, seeds: int = 8) -> float:
    """Mean seconds of the counted steps over several seeds: what a short run is compared with.

    A run begins with an empty buffer. With much staleness, many steps pass before its pace is steady.
    """
    runs = (simulate(setup, steps=steps, warm=warm, seed=seed) for seed in range(seeds))
    return sum(run.step_s for run in runs) / seeds


def simulated_steps(setup: Setup, *, steps: int, seed: int = 0) -> Sequence[StepRecord]:
    """The steps one by one."""
    run = _Simulation(setup, steps=steps, warm=0, seed=seed)
    run.play()
    return run.records


@dataclass(slots=True)
class _Simulation:
    setup: Setup
    steps: int
    warm: int
    seed: int
    now: float = 0.0
    version: int = 0
    """Number of published updates."""
    _generator: random.Random = field(init=False)
    _events: list[tuple[float, int, Callable[[Any], None], Any]] = field(default_factory=list)
    _numbers: Any = field(default_factory=count)
    _orders: Any = field(default_factory=count)
    _buffer: SimulatedBuffer = field(init=False)
    _servers: list[SimulatedServer] = field(init=False)
    _pool: ServerPool = field(init=False)
    _cores: SharedCores | None = field(init=False)
    _touched: set[int] = field(default_factory=set)
    """Servers whose next end is not planned yet."""
    _homeless: list[Player] = field(default_factory=list)
    """Requests that wait for a server to come back."""
    _wait: BatchWait | None = None
    _step: StepUnderWay | None = None
    _trained: StepUnderWay | None = None
    """A step whose weights are not published yet, because the last ones are still on their way."""
    _delivery: Delivery = field(default_factory=lambda: Delivery(0, is_sent=True, is_done=True))
    records: list[StepRecord] = field(default_factory=list)
    _debt: int = 0
    """Steps that a lost trainer must make again."""
    _trainer_down_until: float = 0.0

    def play(self) -> None:
        setup = self.setup
        self._generator = random.Random(self.seed)
        self._buffer = SimulatedBuffer(setup.rules)
        self._servers = [SimulatedServer(i, setup.engine) for i in range(setup.num_engines)]
        self._pool = ServerPool(self._servers)
        self._cores = SharedCores.of(setup)
        if setup.losses is not None:
            self._plan_losses(setup.losses)
        self._begin_wait()
        self._settle()
        calls = setup.rules.gate.batch * (2.0 + setup.workload.mean_turns())
        patience = 10_000 + round(PATIENCE * calls)
        num_made, num_events = 0, 0
        while len(self.records) < self.steps:
            num_events += 1
            if len(self.records) > num_made:
                num_made, num_events = len(self.records), 0
            if not self._events or num_events > patience:
                raise ConfigError(_STUCK)
            self.now, _, handle, subject = heapq.heappop(self._events)
            handle(subject)
            self._settle()

    def _at(self, time: float, handle: Callable[[Any], None], subject: Any = None) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), handle, subject))

    def _settle(self) -> None:
        """Let everything go on that may do so after an event."""
        if self._buffer.has_news:
            self._try_cut()
        self._admit()
        if self._cores is not None:
            self._share_cores(self._cores)
        for index in sorted(self._touched):
            self._plan_end(self._servers[index])
        self._touched.clear()

    # --- episodes ----------------------------------------------------------------------------

    def _admit(self) -> None:
        flow, workload = self._buffer.flow, self.setup.workload
        while flow.has_room():
            group = SimulatedGroup(next(self._orders))
            shapes = workload.draw(self._generator, self.setup.rules.group_size)
            group.players = [Player(group, shape, began_at=self.now) for shape in shapes]
            mark_idle(group, workload.idle_share, self._generator)
            flow.admit(group)
            for player in group.players:
                self._go_on(player)

    def _go_on(self, player: Player) -> None:
        """Begin the player's next turn, after the time that the agent takes before it."""
        turn = player.next_turn()
        if turn is None:
            self._at(self.now + player.shape.after_s, self._end, player)
        elif self._cores is not None:
            self._later(turn.before_s, self._pass_main, player)
        else:
            self._later(turn.before_s, self._request, player)

    def _later(self, delay_s: float, handle: Callable[[Any], None], subject: Any) -> None:
        if delay_s > 0.0:
            self._at(self.now + delay_s, handle, subject)
        else:
            handle(subject)

    def _pass_main(self, player: Player) -> None:
        """The main process handles one call after the other."""
        assert self._cores is not None
        if not player.is_over:
            self._later(self._cores.main_wait_s(self.now), self._request, player)

    def _request(self, player: Player) -> None:
        if player.is_over:
            return
        server = self._pool.choose(player.home)
        if server is None:
            self._homeless.append(player)
            return
        player.home = server
        server.advance(self.now)
        server.send(player)
        self._touch(server)

    def _end(self, player: Player) -> None:
        if player.is_over:
            return
        for other in self._buffer.end(player, is_valid=player.shape.is_valid):
            self._stop(other, DropReason.GROUP_INCOMPLETE)

    def _stop(self, player: Player, reason: DropReason) -> None:
        if (server := player.server) is not None:
            server.advance(self.now)
            server.cancel(player)
            self._touch(server)
        self._buffer.stop(player, reason)

    # --- servers -----------------------------------------------------------------------------

    def _touch(self, server: SimulatedServer) -> None:
        self._touched.add(server.index)
        self._pool.note(server)

    def _tell(self, change: Callable[[SimulatedServer], None]) -> None:
        for server in self._servers:
            server.advance(self.now)
            change(server)
            self._touch(server)

    def _plan_end(self, server: SimulatedServer) -> None:
        server.stamp += 1
        time = server.next_end()
        if time < math.inf:
            self._at(time, self._collect, (server, server.stamp))

    def _collect(self, plan: tuple[SimulatedServer, int]) -> None:
        server, stamp = plan
        if stamp != server.stamp:
            return
        server.advance(self.now)
        ended = server.collect()
        self._touch(server)
        for player in ended:
            self._later(self.setup.engine.request_s, self._go_on, player)
        self._deliver_drained()

    def _share_cores(self, cores: SharedCores) -> None:
        """A new pace for all, where somebody began or ceased to compute."""
        num_computing = sum(server.is_computing for server in self._servers)
        pace = cores.pace(self.now, num_engines=num_computing, is_training=self._step is not None)
        if pace == cores.current:
            return
        cores.current = pace
        for server in self._servers:
            server.advance(self.now)
            server.pace = pace if self.setup.engine.cores else 1.0
            self._touched.add(server.index)
        if self._step is not None:
            self._plan_step_end(self._step)

    # --- the trainer ---------------------------------------------------------------------------

    def _begin_wait(self) -> None:
        self._wait = BatchWait(self.now)
        self._buffer.flow.begin_cut(self.version)
        self._try_cut()

    def _try_cut(self) -> None:
        wait = self._wait
        if wait is None or not self._buffer.is_enough():
            return
        if self.setup.is_colocated and not self._delivery.is_done:
            return  # the delivery asks again
        if self.now < self._trainer_down_until:
            self._at(self._trainer_down_until, lambda _: self._try_cut())
            return
        cut_at = self._buffer.flow.cut_time(self.now)
        assert cut_at is not None, "there are enough groups"
        if cut_at <= self.now:
            self._begin_step(self._buffer.cut(self.version))
        elif not wait.is_held:
            wait.is_held = True
            self._at(cut_at, self._end_hold, wait)

    def _end_hold(self, wait: BatchWait) -> None:
        if wait is self._wait:
            self._try_cut()

    def _begin_step(self, batch: SimulatedBatch) -> None:
        assert self._wait is not None
        wait, self._wait = self._wait, None
        if self.setup.is_colocated:
            self._tell(SimulatedServer.hold)
        rows = sum(player.shape.num_trained_row for player in batch.players)
        num_tokens = rows * self.setup.workload.trained_share
        record = StepRecord(
            waited_s=self.now - wait.began_at,
            num_sampled=sum(player.shape.num_sampled for player in batch.players),
            num_rows=num_tokens,
            ages=tuple(batch.ages()),
            num_running=self._buffer.flow.num_running,
            groups=tuple(group.order for group in batch.groups),
        )
        work_s = self.setup.trainer.step_s(num_tokens, len(batch.players))
        self._step = StepUnderWay(batch, record, work_s, began_at=self.now, paced_at=self.now)
        self._plan_step_end(self._step)

    def _plan_step_end(self, step: StepUnderWay) -> None:
        pace = 1.0
        if self._cores is not None:
            step.left_s -= (self.now - step.paced_at) * self._cores.trainer_pace
            self._cores.trainer_pace = pace = (
                self._cores.current if self.setup.trainer.cores else 1.0
            )
        step.paced_at = self.now
        step.stamp += 1
        self._at(self.now + max(0.0, step.left_s) / pace, self._end_step, (step, step.stamp))

    def _end_step(self, plan: tuple[StepUnderWay, int]) -> None:
        step, stamp = plan
        if step is not self._step or stamp != step.stamp:
            return
        self._step = None
        step.record.step_s = self.now - step.began_at
        self._trained = step
        if self._delivery.is_done:
            self._begin_publish()

    def _begin_publish(self) -> None:
        step, self._trained = self._trained, None
        self._later(self.setup.trainer.whole_publish_s, self._publish, step)

    def _publish(self, step: StepUnderWay) -> None:
        self.version = step.batch.version + 1
        if self._debt:
            self._debt -= 1  # it only makes again what a lost trainer had made
        else:
            step.record.ended_at = self.now
            self.records.append(step.record)
        self._delivery = Delivery(self.version)
        self._tell(lambda server: server.hold(drains=self.setup.drains))
        self._deliver_drained()
        self._begin_wait()

    def _deliver_drained(self) -> None:
        """Send the weights to all servers, once no server has requests to end."""
        delivery = self._delivery
        drains = self.setup.drains and any(server.num_running for server in self._servers)
        if not delivery.is_sent and not drains:
            delivery.is_sent = True
            self._later(self.setup.engine.swap_s, self._delivered, delivery)

    def _delivered(self, delivery: Delivery) -> None:
        self._tell(lambda server: server.take_weights(delivery.version))
        delivery.is_done = True
        for player, reason in self._buffer.set_version(delivery.version):
            self._stop(player, reason)
        if self._wait is not None:
            self._try_cut()
        if self._trained is not None:
            self._begin_publish()

    # --- lost nodes ------------------------------------------------------------------------------

    def _plan_losses(self, losses: LossRates) -> None:
        for server in self._servers:
            if losses.engine_mtbf_s:
                time = self._generator.expovariate(1.0 / losses.engine_mtbf_s)
                self._at(self.now + time, self._lose_server, server)
        if losses.trainer_mtbf_s:
            time = self._generator.expovariate(1.0 / losses.trainer_mtbf_s)
            self._at(self.now + time, self._lose_trainer)

    def _lose_server(self, server: SimulatedServer) -> None:
        losses = self.setup.losses or LossRates()
        server.advance(self.now)
        lost = server.fail()
        self._pool.num_up -= 1
        self._touch(server)
        self._at(self.now + losses.engine_restart_s, self._recover_server, server)
        for player in lost:
            player.home = None
            self._request(player)
        self._deliver_drained()

    def _recover_server(self, server: SimulatedServer) -> None:
        losses = self.setup.losses or LossRates()
        server.advance(self.now)
        server.recover(self._buffer.flow.version)
        self._pool.num_up += 1
        self._touch(server)
        time = self._generator.expovariate(1.0 / losses.engine_mtbf_s)
        self._at(self.now + time, self._lose_server, server)
        homeless, self._homeless = self._homeless, []
        for player in homeless:
            self._request(player)

    def _lose_trainer(self, _: None) -> None:
        """Lose the step that was being made, and make the steps since the last checkpoint again."""
        losses = self.setup.losses or LossRates()
        self._trainer_down_until = self.now + losses.trainer_restart_s
        self._debt += len(self.records) % losses.checkpoint_every if losses.checkpoint_every else 0
        if self._step is not None:
            step = self._step
            again_s = self.setup.trainer.step_s(step.record.num_rows, len(step.batch.players))
            step.left_s = losses.trainer_restart_s + again_s
            step.paced_at = self.now
            self._plan_step_end(step)
        time = self._generator.expovariate(1.0 / losses.trainer_mtbf_s)
        self._at(self._trainer_down_until + time, self._lose_trainer)

    # --- the end -----------------------------------------------------------------------------------

    def forecast(self) -> Forecast:
        self._tell(lambda _: None)
        return Forecast.of(
            self.setup,
            self.records,
            warm=self.warm,
            lasted_s=self.now,
            servers=self._servers,
            dropped=dict(self._buffer.dropped),
        )


_STUCK = (
    "the simulated run makes no progress: every episode is dropped before it is trained. Raise "
    "rollout.max_staleness or rollout.wait_s, or choose another workload"
)
