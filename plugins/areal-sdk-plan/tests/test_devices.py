"""The plan of devices: a pure function of the GPUs and what a run needs."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from areal_sdk.errors import ConfigError
from areal_sdk_plan.devices import (
    LEAST,
    SAFETY,
    USED,
    Demand,
    DevicePlan,
    Gpu,
    plan_devices,
    visible_gpus,
)

GB = 10**9

STEPS = [lambda room: 0, lambda room: 30 * GB, lambda room: 300 * GB]
"""Bytes of a step: not known, and two that are."""


def machine(num: int, memory: int = 80 * GB) -> list[Gpu]:
    return [Gpu(str(index), memory, "H100") for index in range(num)]


def servers(num: int, width: int = 1) -> dict[str, int]:
    return {f"sglang-{index}": width for index in range(num)}


def plan(num: int, ranks: int, engine: Mapping[str, int], **more: Any) -> DevicePlan:
    return plan_devices(machine(num), Demand(ranks, servers=engine, **more))


def gpus_of(found: DevicePlan) -> dict[str, list[int]]:
    return {name: [*place.gpus] for name, place in found.places.items()}


def test_one_gpu_is_shared() -> None:
    found = plan(1, 1, {"engine": 1}, rank_bytes=lambda room: 40 * GB, weights=3 * GB)
    assert gpus_of(found) == {"trainer-0": [0], "engine": [0]}
    trainer, engine = found.places["trainer-0"].share, found.places["engine"].share
    assert trainer == pytest.approx(SAFETY * 40 / 80)
    assert trainer + engine == pytest.approx(USED)


def test_two_gpus_are_one_for_each() -> None:
    found = plan(2, 1, {"engine": 1}, rank_bytes=lambda room: room)
    assert gpus_of(found) == {"trainer-0": [0], "engine": [1]}
    assert {place.share for place in found.places.values()} == {USED}


@pytest.mark.parametrize(
    ("num", "ranks", "num_servers", "place"),
    [(2, 1, 1, 0), (3, 1, 1, 2), (8, 4, 4, 0), (8, 4, 3, 7)],
)
def test_a_process_that_sends_by_nccl_has_no_server_on_its_gpu(
    num: int, ranks: int, num_servers: int, place: int
) -> None:
    found = plan(num, ranks, {"weight-sender": 0, **servers(num_servers)})
    assert [*found.places["weight-sender"].seen] == [place]
    alone = plan(num, ranks, servers(num_servers))
    assert {n: p for n, p in found.places.items() if n != "weight-sender"} == alone.places
    assert [*found.lines()] == [*alone.lines()]


def test_a_sender_without_a_gpu_of_its_own_is_refused_with_the_cure() -> None:
    with pytest.raises(ConfigError, match=r"each of the 2 GPUs has a server.*\"gloo\""):
        plan(2, 1, {"weight-sender": 0, **servers(2)})


def test_eight_gpus() -> None:
    found = plan(8, 4, servers(4))
    assert gpus_of(found) == {
        **{f"trainer-{index}": [index] for index in range(4)},
        **{f"sglang-{index}": [4 + index] for index in range(4)},
    }
    assert "GPU 6, H100, 80 GB: nothing" in "\n".join(plan(8, 4, servers(2)).lines())


def test_four_gpus_with_a_server_of_two() -> None:
    found = plan(4, 2, servers(1, 2))
    assert gpus_of(found) == {"trainer-0": [0], "trainer-1": [1], "sglang-0": [2, 3]}
    assert found.environments["sglang-0"]["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_where_engine_and_trainer_take_turns_both_have_all_gpus() -> None:
    found = plan(
        2, 2, servers(2), takes_turns=True, rank_bytes=lambda room: 16 * GB, weights=14 * GB
    )
    assert gpus_of(found) == {
        "trainer-0": [0],
        "trainer-1": [1],
        "sglang-0": [0],
        "sglang-1": [1],
    }
    assert found.places["trainer-1"].share == USED
    assert found.places["sglang-1"].share == pytest.approx(USED - SAFETY * 16 / 80)


def test_every_machine_and_demand_gets_a_plan_that_holds() -> None:
    """Each process has the GPUs that it needs. No GPU is promised twice while another one is idle. Where engine and
    trainer share a GPU, both together have no more than there is, unless the weights alone are too large."""
    for num, ranks, count, width in itertools.product(
        range(1, 9), range(9), range(5), (1, 2, 4, 8)
    ):
        if ranks > num or (count and width > num):
            continue
        for weights, step in itertools.product((0, 14 * GB, 40 * GB), STEPS):
            found = plan_devices(
                machine(num),
                Demand(ranks, step, servers(count, width), weights),
            )
            places = [*found.places.values()]
            assert len(places) == ranks + count
            assert [len(place.gpus) for place in places] == [1] * ranks + [width] * count
            load = [sum(index in place.gpus for place in places) for index in range(num)]
            if ranks + count * width <= num:
                assert max(load) <= 1
            elif width == 1:
                assert min(load) >= 1
            for index in range(num):
                here = [place for place in places if index in place.gpus]
                assert all(0 <= place.share <= USED for place in here)
                total = sum(place.share for place in here)
                assert total <= max(USED, len(here) * LEAST * weights / width / (80 * GB)) + 1e-9


@pytest.mark.parametrize(
    ("num", "ranks", "engine", "message"),
    [
        (2, 4, {}, "trainer.ranks = 4, and this run sees 2 GPUs: two ranks on one GPU"),
        (2, 1, servers(1, 4), "engine.sglang.tp_size = 4, and this run sees 2 GPUs"),
    ],
)
def test_what_cannot_work_is_refused(
    num: int, ranks: int, engine: Mapping[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(num, ranks, engine)


def test_the_list_of_gpus_follows_what_the_run_may_see() -> None:
    listed = "".join(f"{n}, GPU-{n}f, 81559, NVIDIA H100, 80GB\n" for n in range(4))
    names = [gpu.id for gpu in visible_gpus(listed, None)]
    assert names == ["0", "1", "2", "3"]
    assert [gpu.id for gpu in visible_gpus(listed, "2,GPU-1f")] == ["2", "GPU-1f"]
    assert visible_gpus(listed, "") == visible_gpus(listed, "-1") == visible_gpus("", None) == ()
    assert visible_gpus(listed, "3")[0] == Gpu("3", 81559 << 20, "NVIDIA H100, 80GB")
