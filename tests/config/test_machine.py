import os
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.config import Config, idle_settings, machine, parse_config

FLOAT32 = ("float32", "float32")
USUAL = ("bfloat16", "auto")


@pytest.fixture
def slow_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_bfloat16", lambda: False)
    monkeypatch.setattr(machine, "has_gpu", lambda: False)


def types(values: dict[str, Any]) -> tuple[str, str]:
    config = parse_config(values)
    return config.trainer.precision, config.engine.dtype


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16", True),
        ("flags\t\t: fpu avx2 fma", False),
        ("flags : avx512f avx512bw avx512vl", False),  # computes bfloat16 in float32, and converts
        ("Features\t: fp asimd bf16", True),
        ("Features\t: fp asimd", False),
        ("processor\t: 0", True),
    ],
)
def test_what_a_cpu_can_is_read_from_the_kernel(tmp_path: Path, line: str, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"vendor_id\t: one\n{line}\n")
    assert machine.has_bfloat16(tmp_path / "cpuinfo") is expected


def test_a_kernel_that_says_nothing_changes_nothing(tmp_path: Path) -> None:
    assert machine.has_bfloat16(tmp_path / "absent")


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str
) -> None:
    monkeypatch.setattr(machine, "GPU_DEVICES", (tmp_path,))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machine.has_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert not machine.has_gpu()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, FLOAT32),
        ({"engine": {"dtype": "auto", "threads": 1}, "trainer": {"ranks": 2}}, FLOAT32),
        ({"engine": {"dtype": "bfloat16"}}, ("float32", "bfloat16")),
        ({"trainer": {"precision": "bfloat16"}}, ("bfloat16", "float32")),
        ({"engine": {"device": "cuda"}, "trainer": {"device": "cuda:1"}}, USUAL),
        ({"engine": {"name": "sglang"}, "trainer": {"name": "mine"}}, USUAL),
        ({"cluster": {"launcher": "ray"}}, USUAL),
    ],
)
def test_a_cpu_without_bfloat16_computes_in_float32(
    slow_bfloat16: None, values: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert types(values) == expected


def test_other_values_of_a_section_stay(slow_bfloat16: None) -> None:
    config = parse_config({"trainer": {"ranks": 2}, "engine": {"max_slots": 3}})
    assert (config.trainer.ranks, config.engine.max_slots) == (2, 3)
    assert config == Config.model_validate(config.model_dump())


def test_a_gpu_computes_in_bfloat16(slow_bfloat16: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    assert types({}) == USUAL
    assert types({"trainer": {"device": "cpu"}}) == ("float32", "auto")


def test_bfloat16_that_somebody_asks_for_gets_a_remark(slow_bfloat16: None) -> None:
    config = parse_config({"trainer": {"precision": "bfloat16"}})
    (line,) = idle_settings(config, engine="local")
    assert line.startswith('trainer.precision = "bfloat16" takes several times as long')


@pytest.mark.parametrize(("capabilities", "dtype"), [("7.5", "float32"), ("8.0\\n9.0", "bfloat16")])
def test_a_gpu_without_bfloat16_computes_in_float32(
    capabilities: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{capabilities}\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    machine.gpus_have_bfloat16.cache_clear()
    try:
        config = parse_config({"trainer": {"device": "cuda"}, "engine": {"device": "cuda"}})
    finally:
        machine.gpus_have_bfloat16.cache_clear()
    assert config.trainer.precision == dtype
    assert config.engine.dtype == ("float32" if dtype == "float32" else "auto")


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of eight cores with two threads each, and no GPU. Returns the file of the container's quota."""
    for number in range(16):
        core = number // 2
        (tmp_path / str(number)).write_text(f"{2 * core}-{2 * core + 1}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(machine, "TOPOLOGY", str(tmp_path / "{}"))
    monkeypatch.setattr(machine, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(machine, "has_gpu", lambda: False)
    monkeypatch.setattr(machine, "num_cores", machine.num_cores.__wrapped__)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path / "cpu.max"


def threads(values: dict[str, Any]) -> tuple[int, int]:
    config = parse_config(values)
    return config.engine.threads, config.trainer.threads


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (3, 3)),
        ({"trainer": {"ranks": 2}}, (2, 2)),
        ({"trainer": {"ranks": 16}}, (1, 1)),
        ({"policy": {"planner": {}, "coder": {}}}, (1, 1)),
        ({"engine": {"threads": 6}}, (6, 3)),
        ({"engine": {"device": "cuda"}}, (1, 3)),
        ({"run": {"deterministic": True}}, (1, 1)),
        ({"cluster": {"launcher": "ray"}}, (1, 1)),
    ],
)
def test_processes_share_the_cores_but_one(
    eight_cores: Path, values: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert threads(values) == expected


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 3), ("500000 100000", 2), ("50000 100000", 1)]
)
def test_a_container_has_the_cores_of_its_quota(
    eight_cores: Path, quota: str, expected: int
) -> None:
    eight_cores.write_text(f"{quota}\n")
    assert threads({}) == (expected, expected)


def test_threads_that_the_environment_names_are_taken(
    eight_cores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads({}) == (2, 2)


def test_two_cores_have_a_thread_for_each_process(
    eight_cores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    assert threads({}) == (1, 1)


def test_a_kernel_without_a_topology_has_a_core_for_each_processor(
    eight_cores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "TOPOLOGY", "/nowhere/{}")
    assert threads({}) == (7, 7)
