"""A server that cannot be trained against is refused before the first request, with the cure."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from areal_sdk.backends.remote.options import ServerLimits
from areal_sdk.backends.remote.starting.processes import ServerProcess
from areal_sdk.errors import EngineError
from areal_sdk.process.network.listen import KeptPort
from areal_sdk_sglang.client import SGLangClient
from areal_sdk_sglang.engine import SGLangEngine
from areal_sdk_sglang.install import SGLangEnvironment
from areal_sdk_sglang.servers import SGLangLauncher
from tests.backends.sglang.conftest import MakeEngine
from tests.backends.sglang.faulty_proxy import FaultyProxy


@pytest.mark.parametrize(
    ("claims", "cure"),
    [
        ({"version": "0.5.21.post2"}, r"runs SGLang 0.5.21.post2; 0.5.22 or newer.*engine install"),
        ({"version": "0.5.22rc1"}, None),
        ({"version": "0.6.0"}, None),
        ({"dp_size": 2}, r"--dp-size 2.*start one server each and name them all"),
    ],
)
async def test_a_server_that_does_not_fit_is_refused_with_the_cure(
    claims: dict[str, Any], cure: str | None, server: ServerProcess, make_engine: MakeEngine
) -> None:
    async with FaultyProxy(server.address).running() as proxy:
        proxy.rewrite_answer["/server_info"] = lambda answer: answer | claims
        if cure is None:
            await make_engine(proxy.address)
        else:
            with pytest.raises(EngineError, match=cure):
                await make_engine(proxy.address)


async def test_who_waits_for_a_named_server_is_told_before_the_wait(
    checkpoints: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = ServerLimits(connect_timeout_s=0.5)
    with KeptPort() as nobody_listens:
        address = f"http://127.0.0.1:{nobody_listens.number}"
        engine = SGLangEngine(checkpoints[0], [address], log_dir=tmp_path, limits=limits)
        with pytest.raises(EngineError, match=r"was not ready within 0\.5 s"):
            await engine.start()
    assert f"waiting up to 0.5 s for the SGLang server of {address}" in caplog.text


async def test_a_server_without_grammars_does_not_claim_to_have_them(
    server: ServerProcess, make_engine: MakeEngine
) -> None:
    async with FaultyProxy(server.address).running() as proxy:
        proxy.rewrite_answer["/server_info"] = lambda answer: answer | {"grammar_backend": "none"}
        engine = await make_engine(proxy.address)
        assert not engine.info.constrains_json


@pytest.mark.slow
async def test_logprobs_of_another_temperature_are_refused(
    environment: SGLangEnvironment,
    checkpoints: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    launcher = SGLangLauncher(checkpoints[0], environment, tmp_path)
    engine = SGLangEngine(checkpoints[0], launcher=launcher, log_dir=tmp_path)
    with pytest.raises(EngineError, match="start it without SGLANG_RETURN_ORIGINAL_LOGPROB"):
        await engine.start()


@pytest.mark.slow
async def test_servers_of_different_weights_are_refused(
    server: ServerProcess,
    second_server: ServerProcess,
    checkpoints: list[Path],
    make_engine: MakeEngine,
) -> None:
    engine = await make_engine(server.address, second_server.address, is_started=False)
    async with aiohttp.ClientSession() as session:
        other = SGLangClient(second_server.address, session)
        await other.update_from_disk(str(checkpoints[1]), label="theirs", flush=True)
    with pytest.raises(EngineError, match=r"serve different weights.*start both from"):
        await engine.start()
