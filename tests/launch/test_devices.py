"""Processes of a run start with the GPUs that are planned for them."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.config import parse_config
from areal_sdk.fsdp.memory.fitting import Fit
from areal_sdk.launch import LocalLauncher
from areal_sdk.launcher import SHARE_VARIABLE
from areal_sdk.loop.plan.devices import NO_DEVICES, Devices, device_plan
from areal_sdk.loop.plan.parts import make_engine
from areal_sdk.plugins import load_plugins
from areal_sdk.process import ProcessSpec
from areal_sdk.shapes import SHAPES
from areal_sdk_sglang.engine import SGLangEngine
from areal_sdk_sglang.install import SGLangEnvironment
from areal_sdk_sglang.servers import SGLangLauncher
from areal_sdk_sglang.settings import SGLangSection

GB = 10**9
ASKED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", SHARE_VARIABLE, "LOCAL_RANK")


def planned(num: int, **settings: Any) -> Devices:
    config = parse_config(settings)
    fit = Fit(SHAPES["1.5B"], config.trainer, "bfloat16", 0)
    return device_plan(config, load_plugins(), fit, memories=[80 * GB] * num)


def seen(found: Devices) -> dict[str, str]:
    return {name: own["CUDA_VISIBLE_DEVICES"] for name, own in found.environments.items()}


def test_the_settings_of_a_run_become_a_plan() -> None:
    assert seen(planned(1)) == {"trainer-0": "0", "engine": "0"}
    assert seen(planned(3, trainer={"ranks": 2})) == {
        "trainer-0": "0,1",
        "trainer-1": "0,1",
        "engine": "2",
    }
    assert seen(planned(2, engine={"device": "cpu"})) == {"trainer-0": "0"}
    assert seen(planned(2, trainer={"device": "cpu"})) == {"engine": "0"}
    assert planned(2).lines == [
        "GPU 0, GPU, 80 GB: trainer-0 with up to 90% of the memory",
        "GPU 1, GPU, 80 GB: engine with up to 90% of the memory",
    ]


def test_a_shared_gpu_is_divided_by_the_predicted_step() -> None:
    # A machine whose GPU or CPU has no bfloat16 would train in float32, with more memory.
    found = planned(1, trainer={"precision": "bfloat16"}).environments
    trainer, engine = (float(found[name][SHARE_VARIABLE]) for name in ("trainer-0", "engine"))
    assert trainer == pytest.approx(1.15 * 42.55 / 80, abs=0.01)
    assert trainer + engine == pytest.approx(0.9, abs=0.002)
    assert all(SHARE_VARIABLE not in own for own in planned(2).environments.values())


@pytest.mark.parametrize(
    "settings",
    [
        {"trainer": {"device": "cuda:1"}},
        {"engine": {"device": "cuda:1"}},
        {"cluster": {"launcher": "ray"}},
    ],
)
def test_who_names_gpus_gets_what_the_settings_say(settings: dict[str, Any]) -> None:
    assert planned(2, **settings) == NO_DEVICES


async def test_processes_start_with_their_gpus(tmp_path: Path) -> None:
    found = planned(3, trainer={"ranks": 2}).environments
    launcher = LocalLauncher(log_dir=tmp_path, environments=found)
    entry = "tests.process.entries:tell_environment"
    ranks = await launcher.launch([ProcessSpec(f"trainer-{n}", entry) for n in range(2)])
    [engine] = await launcher.launch([ProcessSpec("engine", entry)])
    [node] = await launcher.launch([ProcessSpec("node-0", entry)])
    children = (*ranks, engine, node)
    try:
        told = [[child.hello.get(name) for name in ASKED] for child in children]
    finally:
        await asyncio.gather(*(child.aclose() for child in children))
    assert told == [
        ["0,1", "PCI_BUS_ID", None, "0"],
        ["0,1", "PCI_BUS_ID", None, "1"],
        ["2", "PCI_BUS_ID", None, "0"],
        [None, None, None, "0"],
    ]


def test_the_process_that_sends_weights_by_nccl_gets_a_gpu_without_a_server(tmp_path: Path) -> None:
    (tmp_path / "areal-sdk-sglang").write_text("0.5.23 cuda\n")
    own = {
        "environment": str(tmp_path),
        "servers": 2,
        "transport": "distributed",
        "group_backend": "nccl",
    }
    config: dict[str, Any] = {"trainer": {"ranks": 2}, "engine": {"name": "sglang", "sglang": own}}
    found = planned(4, **config)
    assert seen(found) == {
        "trainer-0": "0,1",
        "trainer-1": "0,1",
        "sglang-0": "2",
        "sglang-1": "3",
        "weight-sender": "0",
    }
    engine = make_engine(
        parse_config(config),
        tmp_path,
        plugins=load_plugins(),
        log_dir=tmp_path,
        environments=found.environments,
    )
    assert isinstance(engine, SGLangEngine)
    assert engine._sender_env["CUDA_VISIBLE_DEVICES"] == "0"


def test_servers_start_with_their_gpus(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"dtype": "bfloat16"}')
    environment = SGLangEnvironment(Path("/sglang/bin/python"), "0.5.23", cpu=False)
    settings = SGLangSection(servers=2, tp_size=2)

    def commands(
        environments: Mapping[str, Mapping[str, str]],
    ) -> list[tuple[list[str], Mapping[str, str]]]:
        launcher = SGLangLauncher(
            tmp_path, environment, tmp_path, settings=settings, environments=environments
        )
        made = [launcher.command(index, port=1) for index in range(2)]
        return [([*command.arguments], command.variables) for command in made]

    own = {f"sglang-{n}": {"CUDA_VISIBLE_DEVICES": f"{2 + 2 * n},{3 + 2 * n}"} for n in range(2)}
    for words, variables in commands(own):
        assert variables["CUDA_VISIBLE_DEVICES"] in ("2,3", "4,5")
        assert "--base-gpu-id" not in words
        assert "--mem-fraction-static" not in words
    shared = {name: {**variables, SHARE_VARIABLE: "0.300"} for name, variables in own.items()}
    for words, _ in commands(shared):
        assert words[words.index("--mem-fraction-static") + 1] == "0.300"
    assert commands({})[1][0][-2:] == ["--base-gpu-id", "2"]
