"""A user may write these settings; others are refused with their cure."""

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.backends.remote.connect import read_model_info
from areal_sdk.backends.remote.starting.processes import ServerProcess
from areal_sdk.config import EngineSection
from areal_sdk.engine import EngineSettings
from areal_sdk.errors import ConfigError, EngineError
from areal_sdk.models import make_tiny_model
from areal_sdk_sglang.command import engine
from areal_sdk_sglang.engine import SGLangEngine
from areal_sdk_sglang.install import SGLangEnvironment, find_environment, install
from areal_sdk_sglang.probe import dtype_when_auto
from areal_sdk_sglang.registry import ServerRegistry, start_time
from areal_sdk_sglang.servers import SGLangLauncher
from areal_sdk_sglang.settings import SGLangSection, server_addresses

ADDRESS = "http://127.0.0.1:30000"


def engine_from_settings(
    section: EngineSection, options: dict[str, object], *, model_dir: Path, log_dir: Path
) -> SGLangEngine:
    return SGLangEngine.from_settings(EngineSettings(section, options, model_dir, log_dir))


def test_running_servers_are_named_by_address(tmp_path: Path) -> None:
    section = EngineSection(name=f"{ADDRESS},http://127.0.0.1:30001/")
    engine = engine_from_settings(section, {}, model_dir=tmp_path, log_dir=tmp_path)
    assert engine.settings.transport == "tensor"
    with pytest.raises(ConfigError, match="not an address"):
        server_addresses("http://a:1,b")


def test_settings_that_running_servers_would_ignore_are_refused(tmp_path: Path) -> None:
    section = EngineSection(name=ADDRESS, dtype="float32")
    with pytest.raises(ConfigError, match=r"engine.dtype, engine.sglang.servers cannot change"):
        engine_from_settings(section, {"servers": 2}, model_dir=tmp_path, log_dir=tmp_path)


def test_one_gpu_has_no_nccl_group_of_engine_and_trainer(tmp_path: Path) -> None:
    settings = {"colocated": True, "transport": "distributed", "group_backend": "nccl"}
    with pytest.raises(ConfigError, match=r"colocated.*one GPU.*tensor"):
        engine_from_settings(
            EngineSection(name="sglang"), settings, model_dir=tmp_path, log_dir=tmp_path
        )


def test_seeds_on_a_cpu_are_refused(tmp_path: Path) -> None:
    (tmp_path / "areal-sdk-sglang").write_text("0.5.23 cpu\n")
    settings = {"seeded": True, "environment": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"seeded.*CPU.*engine.name = \"local\""):
        engine_from_settings(
            EngineSection(name="sglang"), settings, model_dir=tmp_path, log_dir=tmp_path
        )


def test_a_router_leaves_swaps_to_the_servers(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match='use interrupt = "retract"'):
        engine_from_settings(
            EngineSection(name=ADDRESS),
            {"router": ADDRESS, "interrupt": "abort"},
            model_dir=tmp_path,
            log_dir=tmp_path,
        )


def test_an_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine.sglang: .*'transprt'.*'transport'"):
        engine_from_settings(
            EngineSection(name=ADDRESS), {"transprt": "disk"}, model_dir=tmp_path, log_dir=tmp_path
        )


def test_keeping_kv_means_swapping_in_place(tmp_path: Path) -> None:
    section = EngineSection(name=ADDRESS, kv_on_update="keep")
    made = engine_from_settings(section, {}, model_dir=tmp_path, log_dir=tmp_path)
    assert made.interrupt_mode == "in_place"


def test_a_missing_environment_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="areal-sdk engine install sglang"):
        find_environment(tmp_path)


@pytest.mark.parametrize("file", ["thesis.tex", "pyvenv.cfg"])
def test_an_installation_never_overwrites_a_directory_of_the_user(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / file).write_text("years of work")
    with pytest.raises(ConfigError, match=r"not made by this command.*removed by hand"):
        install(tmp_path)
    assert (tmp_path / file).exists()


@pytest.mark.slow
def test_what_a_killed_installation_left_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    left = tmp_path / "killed"
    found: list[str] = []

    def say(line: str) -> None:
        if line.startswith("installing"):
            found.extend(path.name for path in tmp_path.glob("new/*"))

    with pytest.raises(ConfigError, match="pip install"):
        install(tmp_path / "new", say=say)
    assert {"pyvenv.cfg", "areal-sdk-sglang.making"} <= set(found)
    left.mkdir()
    for name in found:
        (left / name).touch()
    with pytest.raises(ConfigError, match="pip install"):
        install(left)
    assert not left.exists(), "it got as far as a new one does"


def test_the_cpu_recipe_is_for_versions_it_was_tried_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0\.5\.23, not 0\.5\.99"):
        install(tmp_path / "new", cpu=True, version="0.5.99")


def test_a_version_that_would_be_refused_later_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SGLang 0\.5\.21: 0\.5\.22 or newer is needed"):
        install(tmp_path / "new", version="0.5.21")


def test_an_installation_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ConfigError, match="pip install"):
        install(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_auto_keeps_the_precision_of_the_checkpoint(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    environment = SGLangEnvironment(Path("python"), "0.5.23", cpu=True)
    settings = SGLangSection(colocated=True, arguments=("--log-level", "error"))
    launcher = SGLangLauncher(model, environment, tmp_path, settings=settings)
    command = launcher.command(0, port=1).arguments
    assert "--enable-memory-saver" not in command  # of a GPU
    assert command[command.index("--dtype") + 1] == "float32"
    assert list(command[-2:]) == ["--log-level", "error"]
    assert dtype_when_auto(model) == "float16"
    info = read_model_info(model, max_context=512)
    assert (info.max_context, info.stop_tokens) == (512, (258,))


@pytest.mark.parametrize(
    ("extra", "gpus"),
    [
        ((), [None, 2, 4]),
        (("--base-gpu-id", "1"), [1, 3, 5]),
        (("--base-gpu-id=1",), [None, 3, 5]),
        (("--tp-size", "4"), [None, 4, 8]),
        (("--tp=1",), [None, 1, 2]),
        (("--tensor-parallel-size", "3", "--base-gpu-id", "1"), [1, 4, 7]),
    ],
)
def test_servers_share_no_gpu(
    tmp_path: Path, extra: tuple[str, ...], gpus: list[int | None]
) -> None:
    environment = SGLangEnvironment(Path("python"), "0.5.23", cpu=False)
    settings = SGLangSection(servers=3, tp_size=2, arguments=extra)
    launcher = SGLangLauncher(
        tmp_path, environment, tmp_path, engine=EngineSection(dtype="float32"), settings=settings
    )
    found: list[int | None] = []
    for index in range(3):
        command = launcher.command(index, port=1).arguments
        flags = [n for n, flag in enumerate(command) if flag == "--base-gpu-id"]
        found.append(int(command[flags[-1] + 1]) if flags else None)
    assert found == gpus


@pytest.mark.parametrize("extra", [("--base-gpu-id", "first"), ("--base-gpu-id",), ("--tp=two",)])
def test_arguments_that_hide_the_gpus_are_refused_before_a_server_starts(
    tmp_path: Path, extra: tuple[str, ...]
) -> None:
    environment = SGLangEnvironment(Path("python"), "0.5.23", cpu=False)
    settings = SGLangSection(servers=2, arguments=extra)
    with pytest.raises(
        ConfigError, match=rf"engine\.sglang\.arguments: .*{extra[0].split('=')[0]}"
    ):
        SGLangLauncher(tmp_path, environment, tmp_path, settings=settings)


def test_a_server_is_known_by_pid_and_start_time(tmp_path: Path) -> None:
    import os

    registry = ServerRegistry(tmp_path)
    server = ServerProcess(ADDRESS, os.getpid(), tmp_path / "log")
    record = registry.add("mine", server, model=tmp_path)
    assert registry.get(None) == record
    assert record.is_running
    assert start_time(os.getpid()) == record.started
    recycled = tmp_path / "mine.json"
    recycled.write_text(recycled.read_text().replace(str(record.started), "1"))
    assert not registry.get("mine").is_running
    registry.remove("mine")
    with pytest.raises(ConfigError, match="known: none"):
        registry.get("mine")


def test_a_server_that_died_is_listed_with_the_way_to_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def told(*arguments: str) -> str:
        return CliRunner().invoke(engine, arguments, catch_exceptions=False).output

    assert "RUN/logs/sglang-0.log" in told("status")
    assert "no servers" in told("stop", "--all")
    with pytest.raises(ConfigError, match=r"RUN/logs/sglang-0\.log"):
        told("logs")
    process = subprocess.Popen(["sleep", "60"])
    server = ServerProcess(ADDRESS, process.pid, tmp_path / "log")
    ServerRegistry().add("mine", server, model=tmp_path)
    process.kill()
    process.wait(timeout=60)
    assert "mine  died" in told("status")
    assert "why: areal-sdk engine logs mine" in told("status")
    assert "mine had died already; its log: " in told("stop", "mine")
    assert "no servers" in told("status")
