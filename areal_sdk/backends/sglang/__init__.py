"""SGLang servers as the inference engine. They live in an environment of their own; we talk HTTP.

`SGLangEngine` samples from servers that run already, or from its own:

    environment = find_environment()                       # `areal-sdk engine install sglang` made it
    launcher = Launcher(ServerOptions(model), environment, log_dir, count=2)
    engine = SGLangEngine(model, launcher=launcher, log_dir=log_dir)
"""

from areal_sdk.backends.sglang.attest import CanaryScorer
from areal_sdk.backends.sglang.client import Deadlines
from areal_sdk.backends.sglang.engine import SGLangEngine
from areal_sdk.backends.sglang.environment import find_environment, install
from areal_sdk.backends.sglang.launch import Launcher, ServerOptions
from areal_sdk.backends.sglang.options import SGLangOptions
from areal_sdk.backends.sglang.supervisor import SupervisionOptions

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
