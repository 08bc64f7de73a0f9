"""The engine `sglang`: a `RemoteEngine` whose servers run SGLang."""

from collections.abc import Sequence
from pathlib import Path

import aiohttp

from areal_sdk.backends.remote.engine import RemoteEngine
from areal_sdk.backends.remote.options import RemoteOptions
from areal_sdk.backends.remote.processes import ServerLauncher
from areal_sdk.backends.remote.verify import CanaryScorer
from areal_sdk.backends.sglang.client import SGLangClient


class SGLangEngine(RemoteEngine):
    """Samples from SGLang servers."""

    client = SGLangClient

    def __init__(
        self,
        model: Path,
        addresses: Sequence[str] = (),
        *,
        log_dir: Path,
        launcher: ServerLauncher | None = None,
        version: int = 0,
        max_context: int | None = None,
        scorer: CanaryScorer | None = None,
        api_key: str | None = None,
        options: RemoteOptions | None = None,
    ) -> None:
        super().__init__(
            model,
            addresses,
            log_dir=log_dir,
            launcher=launcher,
            version=version,
            max_context=max_context,
            scorer=scorer,
            options=options,
        )
        self._api_key = api_key

    def make_client(self, address: str, session: aiohttp.ClientSession) -> SGLangClient:
        return SGLangClient(
            address, session, deadlines=self.options.deadlines, api_key=self._api_key
        )
