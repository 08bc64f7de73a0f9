"""SGLang servers as the inference engine, over HTTP. They live in an environment of their own.

`SGLangEngine` samples from servers that run already, or from its own:

    environment = find_environment()                       # `areal-sdk engine install sglang` made it
    launcher = SGLangLauncher(ServerOptions(model), environment, log_dir, count=2)
    engine = SGLangEngine(model, launcher=launcher, log_dir=log_dir)
"""

from areal_sdk.backends.sglang.engine import SGLangEngine
from areal_sdk.backends.sglang.install import find_environment, install
from areal_sdk.backends.sglang.servers import ServerOptions, SGLangLauncher

__all__ = ["SGLangEngine", "SGLangLauncher", "ServerOptions", "find_environment", "install"]
