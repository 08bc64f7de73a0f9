"""`--push`: uploads through huggingface_hub, to a hub on this machine."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from areal_sdk.errors import ConfigError
from areal_sdk.loop.export import check_name, choose, push, write_export
from areal_sdk.loop.export.hub import PushError
from areal_sdk.telemetry import RunDir
from tests.loop.runs import finish, start_command

from .hub import TOKEN, Hub, running_hub

pytestmark = pytest.mark.filterwarnings(  # by huggingface_hub, where it uploads without Xet
    "ignore:Use 'content:DeprecationWarning"
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """huggingface_hub reads its environment when it is imported, and here that was long ago."""
    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


@pytest.fixture(scope="module")
def exported(run: RunDir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exported") / "model"
    write_export(choose(run), directory, dtype="bfloat16")
    return directory


def test_every_file_arrives_in_a_repository_that_is_made(hub: Hub, exported: Path) -> None:
    check_name("me/model")
    assert push(exported, "me/model", private=True) == f"{hub.url}/me/model"
    (made,) = hub.created
    assert (made["organization"], made["name"], made["visibility"]) == ("me", "model", "private")
    assert hub.files == {path.name: path.read_bytes() for path in exported.iterdir()}
    assert "model.safetensors" in hub.files


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "does not accept the token: log in with `hf auth login`, or set HF_TOKEN"),
        (403, "the token may not write me/model: choose a name of your own"),
        (400, "refused me/model"),
    ],
)
def test_a_refusal_names_the_cure(hub: Hub, exported: Path, status: int, told: str) -> None:
    hub.refuses = status
    with pytest.raises(PushError, match=told) as error:
        push(exported, "me/model")
    assert hub.url in str(error.value)
    assert "\n" not in str(error.value)


def test_a_hub_that_cannot_be_reached_is_named(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(PushError, match=r"127.0.0.1:1 \(HF_ENDPOINT\) cannot be reached"):
        push(exported, "me/model")


def test_a_missing_token_and_a_wrong_name_are_told_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(ConfigError, match=r"needs a token of the hub: log in with `hf auth login`"):
        check_name("me/model")
    with pytest.raises(ConfigError, match="as OWNER/NAME"):
        check_name("me/model/step-3")


@pytest.mark.slow
def test_the_command_uploads_to_the_endpoint_that_the_environment_names(run: RunDir) -> None:
    with running_hub() as hub:
        settings = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        command = start_command(
            "export", str(run.path), "--push", "me/model", env=os.environ | settings
        )
        assert f"{hub.url}/me/model" in finish(command)
    assert "README.md" in hub.files
    assert hub.files["README.md"].decode().partition("\n# ")[2].startswith("model\n")
