"""SGLang servers as the inference engine. They live in an environment of their own; we talk HTTP.

`SGLangEngine` samples from servers that run already, or from its own:

    environment = find_environment()                       # `areal-sdk engine install sglang` made it
    launcher = Launcher(ServerOptions(model), environment, log_dir, count=2)
    engine = SGLangEngine(model, launcher=launcher, log_dir=log_dir)
"""

from areal_sdk.backends.remote.engine import SGLangEngine
from areal_sdk.backends.remote.supervisor import SupervisionOptions
from areal_sdk.backends.remote.verify import CanaryScorer
from areal_sdk.backends.sglang.client import Deadlines
from areal_sdk.backends.sglang.install import find_environment, install
from areal_sdk.backends.sglang.options import SGLangOptions
from areal_sdk.backends.sglang.servers import Launcher, ServerOptions

__all__ = [
    "CanaryScorer",
    "Deadlines",
    "Launcher",
    "SGLangEngine",
    "SGLangOptions",
    "ServerOptions",
    "SupervisionOptions",
    "find_environment",
    "install",
]
