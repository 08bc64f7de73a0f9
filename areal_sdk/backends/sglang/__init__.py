"""SGLang servers as the inference engine, over HTTP. They live in an environment of their own.

`SGLangEngine` samples from servers that run already, or from its own:

    environment = find_environment()                       # `areal-sdk engine install sglang` made it
    launcher = SGLangLauncher(model, environment, log_dir, settings=SGLangSection(servers=2))
    engine = SGLangEngine(model, launcher=launcher, log_dir=log_dir)
"""

from areal_sdk.backends.sglang.engine import SGLangEngine
from areal_sdk.backends.sglang.install import find_environment, install
from areal_sdk.backends.sglang.servers import SGLangLauncher
from areal_sdk.backends.sglang.settings import SGLangSection

__all__ = ["SGLangEngine", "SGLangLauncher", "SGLangSection", "find_environment", "install"]
