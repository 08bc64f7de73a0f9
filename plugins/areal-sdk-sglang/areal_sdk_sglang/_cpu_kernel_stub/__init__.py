"""An import-only `sgl_kernel` for SGLang on a CPU, copied into its environment as that package.

SGLang imports the names of its compiled kernels on every device. A CPU server takes the plain torch path
and calls none of them. Every name exists here and raises when called. Submodules do not exist, because
SGLang has a fallback of its own for each.
"""

from collections.abc import Callable
from typing import NoReturn

__version__ = "0.0.0+import.only"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is not available on a CPU")

    return kernel
