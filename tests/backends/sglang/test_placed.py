"""A machine of a cluster starts an SGLang server from the settings that it is sent."""

from pathlib import Path

import pytest

from areal_sdk.backends.remote.starting.placement import PlacedServer
from areal_sdk.config import EngineSection
from areal_sdk.engine import EngineSettings, GenerateRequest
from areal_sdk.errors import ConfigError
from areal_sdk.models import make_tiny_model
from areal_sdk.process.network.listen import Listener
from areal_sdk.types import WeightUpdate
from areal_sdk_sglang.engine import SGLangEngine
from areal_sdk_sglang.install import ENVIRONMENT_VARIABLE, SGLangEnvironment
from areal_sdk_sglang.placed import make_server, placed_settings, recipe_of
from areal_sdk_sglang.settings import SGLangSection
from tests.backends.remote.elsewhere import Elsewhere, can_mount

HOST, PORT = "10.0.0.2", 40000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=1)


def made(directory: Path, version: str = "0.5.23") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "areal-sdk-sglang").write_text(f"{version} cpu\n")
    return directory


def section_of(**settings: object) -> EngineSection:
    return EngineSection.model_validate({"name": "sglang", **settings})


def test_a_machine_makes_the_command_with_its_own_environment(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mains, nodes, named = (made(tmp_path / name) for name in ("main", "node", "named"))
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(mains))
    recipe = recipe_of(model, section_of(max_slots=7), SGLangSection(kv_tokens=99))
    option = recipe_of(model, section_of(), SGLangSection(environment=named))

    for variable, found in ((str(nodes), nodes), ("", mains)):
        if variable:
            monkeypatch.setenv(ENVIRONMENT_VARIABLE, variable)
        else:
            monkeypatch.delenv(ENVIRONMENT_VARIABLE)
        server = make_server(recipe.args, model=model, host=HOST, port=PORT)
        command = " ".join(server.command.arguments)
        assert command.startswith(f"{found}/bin/python -m sglang.launch_server")
        assert f"--host {HOST} --port {PORT}" in command
        assert "--max-running-requests 7" in command
        assert "--max-total-tokens 99" in command
        assert server.software == {"SGLang": "0.5.23"}
        given = make_server(option.args, model=model, host=HOST, port=PORT)
        assert given.command.arguments[0] == f"{named}/bin/python"


def test_a_machine_without_a_fit_environment_names_the_cure(model: Path, tmp_path: Path) -> None:
    own = SGLangSection(environment=tmp_path / "none")
    recipe = recipe_of(model, section_of(), own)
    with pytest.raises(ConfigError, match=rf"engine install sglang --into {tmp_path / 'none'}`"):
        make_server(recipe.args, model=model, host=HOST, port=PORT)
    made(tmp_path / "none", "0.5.9")
    with pytest.raises(ConfigError, match=r"SGLang 0\.5\.9: 0\.5\.22 or newer is needed"):
        make_server(recipe.args, model=model, host=HOST, port=PORT)
    made(tmp_path / "none")
    recipe = recipe_of(model, section_of(device="cuda"), own)
    with pytest.raises(ConfigError, match="was made for cpu"):
        make_server(recipe.args, model=model, host=HOST, port=PORT)


@pytest.mark.parametrize(
    ("device", "tp", "gpus"), [("cpu", 1, 0), ("auto", 1, None), ("cuda", 1, 1), ("auto", 4, 4)]
)
def test_a_server_reserves_the_gpus_that_it_takes(
    device: str, tp: int, gpus: int | None, model: Path
) -> None:
    recipe = recipe_of(model, section_of(device=device, threads=2), SGLangSection(tp_size=tp))
    assert (recipe.reserves.gpus, recipe.reserves.cpus) == (gpus, 2)
    assert ("needs one machine with 4 free GPUs" in recipe.no_room) is (tp > 1)


def test_what_needs_one_machine_is_refused() -> None:
    assert placed_settings(SGLangSection(), host=HOST).transport == "disk"
    chosen = placed_settings(SGLangSection(transport="distributed"), host=HOST)
    assert (chosen.transport, chosen.group_host) == ("distributed", HOST)
    with pytest.raises(ConfigError, match=r'"tensor" is shared memory of one machine.*use "disk"'):
        placed_settings(SGLangSection(transport="tensor"), host=HOST)
    with pytest.raises(ConfigError, match="colocated needs engine and trainer on one machine"):
        placed_settings(SGLangSection(colocated=True), host=HOST)


def test_the_main_process_of_a_cluster_needs_no_sglang(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "nowhere"))
    settings = EngineSettings(section_of(), {}, model, tmp_path, is_placed=True)
    assert SGLangEngine.from_settings(settings).settings.transport == "disk"
    with pytest.raises(ConfigError, match="no SGLang environment"):
        SGLangEngine.from_settings(EngineSettings(section_of(), {}, model, tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="mount namespaces take root and `unshare`")
async def test_a_server_loads_weights_that_its_machine_does_not_see(
    environment: SGLangEnvironment, checkpoints: list[Path], tmp_path: Path
) -> None:
    """Checksums and canary show that the weights are the published ones."""
    published = tmp_path / "published"
    published.mkdir()
    weights = published / "model.safetensors"
    launcher = Elsewhere(await Listener.open(), [published], tmp_path)
    options = {"environment": str(environment.python.parents[1]), "request_wait_s": 600.0}
    settings = EngineSettings(
        section_of(), options, checkpoints[0], tmp_path, launcher=launcher, is_placed=True
    )
    engine = SGLangEngine.from_settings(settings)
    try:
        await engine.start()
        for version in (1, 2):
            weights.write_bytes((checkpoints[version] / "model.safetensors").read_bytes())
            await engine.update_weights(WeightUpdate(version, str(weights)))
            result = await engine.generate(GenerateRequest((5, 6, 7), 8, ignore_eos=True))
            assert set(result.versions) == {version}
        (server,) = engine.servers
        assert isinstance(server.process, PlacedServer)
        assert not await server.process.sees([weights])
    finally:
        await engine.aclose()
        await launcher.aclose()
