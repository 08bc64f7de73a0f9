"""The simulation gives the answer where arithmetic knows it."""

import math
import random
from dataclasses import replace

import pytest

from areal_sdk import ConfigError
from areal_sdk.flow import FlowRules, RolloutSection
from areal_sdk_plan.simulation.losses import LossRates
from areal_sdk_plan.simulation.run import simulate
from areal_sdk_plan.simulation.setup import Setup
from areal_sdk_plan.speeds import DecodeCurve, EngineSpeed, Machine, TrainerSpeed
from areal_sdk_plan.workload import EpisodeShape, LongTail, TurnShape, Workload

ALONE = DecodeCurve(((1, 0.01),))
"""A decoding step takes as long whatever the number of requests."""


def one_turn(num_output: int = 100, *, prompt: int = 10) -> Workload:
    return Workload(((EpisodeShape((TurnShape(prompt, prompt, num_output),)),),))


def make(
    *,
    batch: int = 8,
    group_size: int = 4,
    eta: int = 1,
    inflight: int = 8,
    workload: Workload | None = None,
    engine: EngineSpeed | None = None,
    trainer: TrainerSpeed | None = None,
    num_engines: int = 1,
    machine: Machine | None = None,
    is_colocated: bool = False,
    losses: LossRates | None = None,
    wait_s: float = 30.0,
) -> Setup:
    rollout = RolloutSection(
        batch=batch,
        group_size=group_size,
        max_staleness=eta,
        max_inflight=inflight,
        wait_s=wait_s,
    )
    return Setup(
        FlowRules(rollout),
        workload or one_turn(),
        engine or EngineSpeed(ALONE),
        trainer or TrainerSpeed(token_s=0.0, fixed_s=0.5),
        num_engines,
        machine,
        is_colocated,
        losses,
    )


def test_the_slower_part_sets_the_pace() -> None:
    """8 episodes a round of 1 s: the engine makes a batch a second, the trainer takes 0.5 s, or 3 s."""
    assert simulate(make(eta=4)).step_s == pytest.approx(1.0)
    slow = simulate(make(eta=4, trainer=TrainerSpeed(token_s=0.0, fixed_s=3.0)))
    assert slow.step_s == pytest.approx(3.0)
    assert slow.trainer_idle == pytest.approx(0.0)


def test_without_staleness_rollouts_and_training_take_turns() -> None:
    forecast = simulate(make(eta=0))
    assert forecast.step_s == pytest.approx(1.5)
    assert forecast.staleness == {0: 1.0}
    assert forecast.trainer_idle == pytest.approx(1.0 / 1.5)


def test_a_step_waits_for_the_longest_of_its_episodes() -> None:
    """The mean of the largest of n exponential times is the n-th harmonic number."""
    generator = random.Random(0)
    shapes = tuple(
        (EpisodeShape((TurnShape(1, 1, 1),), after_s=generator.expovariate(1.0)),)
        for _ in range(20_000)
    )
    setup = make(
        eta=0,
        batch=16,
        group_size=1,
        inflight=16,
        workload=Workload(shapes),
        engine=EngineSpeed(DecodeCurve(((1, 1e-6),))),
    )
    forecast = simulate(setup, steps=2000, warm=0)
    largest = sum(1.0 / k for k in range(1, 17))
    assert forecast.step_s == pytest.approx(0.5 + largest, rel=0.02)


def test_a_single_server_queue_waits_as_the_formula_says() -> None:
    """M/D/1: with Poisson arrivals and service S at load r, a request waits r S / (2 (1 - r))."""
    from areal_sdk_plan.simulation.play import Player, SimulatedGroup
    from areal_sdk_plan.simulation.servers import SimulatedServer

    load, service_s, generator = 0.7, 1.0, random.Random(1)
    server = SimulatedServer(0, EngineSpeed(ALONE, max_slots=1))
    shape = EpisodeShape((TurnShape(1, 0, 100),))
    arrivals, now = [], 0.0
    for _ in range(40_000):
        now += generator.expovariate(load / service_s)
        arrivals.append(now)
    waited = []
    came: dict[int, float] = {}
    while arrivals or server.load:
        end = server.next_end()
        if arrivals and arrivals[0] <= end:
            now = arrivals.pop(0)
            server.advance(now)
            player = Player(SimulatedGroup(0), shape, began_at=now)
            player.next_turn()
            came[id(player)] = now
            server.send(player)
        else:
            server.advance(end)
            for player in server.collect():
                waited.append(end - came.pop(id(player)) - service_s)
    assert sum(waited) / len(waited) == pytest.approx(
        load * service_s / (2.0 * (1.0 - load)), rel=0.05
    )


def test_more_engines_and_ranks_divide_the_work() -> None:
    curve = DecodeCurve(((1, 0.01), (101, 1.01)))  # a token costs 10 ms, together or alone
    engine = EngineSpeed(curve)
    one = simulate(make(eta=4, inflight=40, engine=engine))
    four = simulate(make(eta=4, inflight=40, engine=engine, num_engines=4))
    assert one.step_s == pytest.approx(8.0, rel=0.02)
    assert four.step_s == pytest.approx(2.0, rel=0.1)
    work = TrainerSpeed(token_s=0.01, fixed_s=1.0)
    assert work.step_s(880) == pytest.approx(9.8)
    assert replace(work, ranks=4, sync_s=0.5).step_s(880) == pytest.approx(3.7)


def test_prefill_stops_decoding_and_siblings_share_it() -> None:
    shape = EpisodeShape((TurnShape(100, 100, 50, num_shared=100),))
    engine = EngineSpeed(ALONE, prefill_s=0.01)
    forecast = simulate(
        make(eta=0, batch=4, inflight=4, workload=Workload(((shape,),)), engine=engine)
    )
    # one prefill of 100 tokens, three of a single token, then 50 steps
    assert forecast.step_s == pytest.approx(0.5 + 1.03 + 0.5)


def test_memory_for_keys_and_values_makes_requests_wait() -> None:
    engine = EngineSpeed(ALONE, kv_tokens=4 * 110)
    forecast = simulate(make(eta=0, engine=engine))
    assert forecast.step_s == pytest.approx(0.5 + 2.0)


def test_new_weights_interrupt_and_their_kv_is_computed_again() -> None:
    base = make(eta=4, inflight=8, trainer=TrainerSpeed(token_s=0.0, fixed_s=0.1))
    swaps = replace(base, engine=EngineSpeed(ALONE, swap_s=0.5))
    assert simulate(swaps).step_s == pytest.approx(1.5, rel=0.05)
    kept = replace(base, engine=EngineSpeed(ALONE, prefill_s=0.001, swap_s=0.5, recomputes=False))
    again = replace(base, engine=EngineSpeed(ALONE, prefill_s=0.001, swap_s=0.5))
    assert simulate(again).step_s > simulate(kept).step_s


def test_parts_on_one_machine_share_its_cores() -> None:
    engine = EngineSpeed(ALONE, cores=1.0)
    trainer = TrainerSpeed(token_s=0.0, fixed_s=1.0, cores=1.0)
    two = simulate(make(eta=2, inflight=8, engine=engine, trainer=trainer, machine=Machine(2.0)))
    one = simulate(make(eta=2, inflight=8, engine=engine, trainer=trainer, machine=Machine(1.0)))
    assert two.step_s == pytest.approx(1.0, rel=0.05)
    assert one.step_s == pytest.approx(2.0, rel=0.05)


def test_the_main_process_is_one_thread() -> None:
    machine = Machine(64.0, request_cpu_s=0.5)
    forecast = simulate(make(eta=4, machine=machine))
    assert forecast.step_s == pytest.approx(8 * 0.5, rel=0.05)


def test_colocated_parts_never_work_at_the_same_time() -> None:
    forecast = simulate(make(eta=1, inflight=8, is_colocated=True))
    assert forecast.step_s >= 1.5 - 1e-6


@pytest.mark.parametrize("eta", [0, 1, 2, 4])
def test_nothing_older_than_eta_is_trained(eta: int) -> None:
    workload = Workload.described(
        output=LongTail(50.0, 1.5, least=1.0, most=2000.0),
        tool=LongTail(1.0, 1.0),
        turns=3,
        num_answered=10,
        group_size=4,
    )
    forecast = simulate(make(eta=eta, inflight=64, workload=workload, wait_s=1.0), steps=60)
    assert max(forecast.staleness) <= eta
    assert sum(forecast.staleness.values()) == pytest.approx(1.0)


def test_the_same_question_has_the_same_answer() -> None:
    workload = Workload.described(output=LongTail(100.0, 1.0), group_size=4)
    setup = make(eta=2, inflight=16, workload=workload)
    assert simulate(setup, seed=3) == simulate(setup, seed=3)
    assert simulate(setup, seed=3) != simulate(setup, seed=4)


def test_a_lost_trainer_costs_its_restart_and_the_steps_since_the_checkpoint() -> None:
    losses = LossRates(trainer_mtbf_s=600.0, trainer_restart_s=60.0, checkpoint_every=10)
    setup = make(eta=4, trainer=TrainerSpeed(token_s=0.0, fixed_s=2.0), losses=losses)
    forecast = simulate(setup, steps=8000, warm=0)
    assert 2.0 / forecast.step_s == pytest.approx(losses.trainer_share(2.0), rel=0.04)


def test_a_lost_server_sends_its_requests_elsewhere() -> None:
    losses = LossRates(engine_mtbf_s=100.0, engine_restart_s=50.0)
    curve = DecodeCurve(((1, 0.01), (101, 1.01)))
    setup = make(eta=4, inflight=40, engine=EngineSpeed(curve), num_engines=4, losses=losses)
    whole = simulate(replace(setup, losses=None), steps=2000)
    broken = simulate(setup, steps=2000)
    assert whole.step_s / broken.step_s == pytest.approx(losses.engine_share(), rel=0.12)


def test_a_run_that_trains_nothing_is_refused() -> None:
    shape = EpisodeShape((TurnShape(1, 1, 1),), is_valid=False)
    with pytest.raises(ConfigError, match="makes no progress"):
        simulate(replace(make(), workload=Workload(((shape,),))), steps=3, warm=0)


def test_a_curve_needs_rising_points() -> None:
    with pytest.raises(ConfigError, match="rising"):
        DecodeCurve(((4, 0.1), (2, 0.2)))
    assert math.isclose(DecodeCurve(((2, 0.1),)).step_s(50), 0.1)
