"""SGLang's own virtual environment: where it is, and how one is made.

SGLang pins torch, transformers and openai to one version each, agent frameworks need others, so it
lives apart and we talk HTTP to it. On a machine without a GPU its released packages still install,
given a CPU build of torch, one pair of operator schemas and a kernel package nothing calls.

The versions of SGLang that a run can train with are here too.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from areal_sdk.errors import ConfigError
from areal_sdk.launcher import begin_environment, pip_install, run_words

DEFAULT_VERSION = "0.5.23"
TESTED_VERSIONS = ("0.5.23",)
ENVIRONMENT_VARIABLE = "AREAL_SDK_SGLANG_ENV"

_CPU_TORCH = "torch==2.13.0"
_ROUTER = "sglang-router==0.3.2"
_CPU_WITHOUT_DEPENDENCIES = ("triton==3.9.0", "torchvision==0.28.0", "xgrammar==0.2.7", _ROUTER)
_CPU_DEPENDENCIES = [
    "accelerate",
    "aiohttp",
    "apache-tvm-ffi==0.1.11",
    "compressed-tensors==0.18.0",
    "dill",
    "distro",
    "einops",
    "fastapi",
    "gguf",
    "ipython",
    "loguru",
    "mistral_common",
    "msgspec",
    "openai==2.8.0",
    "orjson",
    "packaging",
    "partial-json-parser",
    "pillow",
    "prometheus-client",
    "psutil",
    "pybase64",
    "pydantic",
    "python-multipart",
    "pyzmq",
    "regex",
    "requests",
    "scipy",
    "sentencepiece==0.2.1",
    "setproctitle",
    "soundfile==0.13.1",
    "tiktoken",
    "tokenizers==0.23.2",
    "tqdm",
    "transformers==5.19.0",
    "uvicorn>=0.51",
    "uvloop",
    "watchfiles",
    "zstandard",
]

_TORCHVISION_SCHEMAS = """\
# areal-sdk: the compiled operators of this package want CUDA; its Python part wants their schemas.
import torch as _torch
_schemas = _torch.library.Library("torchvision", "FRAGMENT")
for _operator in ("nms", "qnms"):
    _schemas.define(_operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


@dataclass(frozen=True, slots=True)
class SGLangEnvironment:
    """A Python that can import sglang."""

    python: Path
    version: str
    cpu: bool
    """Whether the environment was made by `install(cpu=True)`: servers then need the CPU flags."""


def default_directory() -> Path:
    """The directory that the variable names, or one in the user's cache."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "areal-sdk" / "sglang"


def find_environment(directory: Path | None = None) -> SGLangEnvironment:
    """The environment `engine install sglang` made, or this one when it has sglang itself."""
    directory = directory or default_directory()
    made = _read_marker(directory)
    if made is not None:
        return made
    if find_spec("sglang") is not None:
        from importlib.metadata import version

        return SGLangEnvironment(Path(sys.executable), version("sglang"), cpu=False)
    into = "" if directory == default_directory() else f" --into {directory}"
    raise ConfigError(
        f"no SGLang environment in {directory}: run `areal-sdk engine install sglang{into}` "
        "(add --cpu on a machine without a GPU), or name servers that run: --engine http://host:port"
    )


def install(
    directory: Path | None = None,
    *,
    version: str = DEFAULT_VERSION,
    cpu: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> SGLangEnvironment:
    """Make the environment; a complete one of the same version is kept as it is."""
    directory = (directory or default_directory()).absolute()
    made = _read_marker(directory)
    if made is not None and (made.version, made.cpu) == (version, cpu):
        say(f"SGLang {version} is installed in {directory}")
        return made
    if why := why_not(version):
        raise ConfigError(f"SGLang {version}: {why}")
    if cpu and version not in TESTED_VERSIONS:
        raise ConfigError(
            f"the CPU recipe is known for SGLang {', '.join(TESTED_VERSIONS)}, not {version}"
        )
    is_ours = made is not None or (directory / _MAKING).exists()
    if not is_ours and directory.exists() and any(directory.iterdir()):
        raise ConfigError(
            f"{directory} is not empty, and was not made by this command: choose another directory "
            "(a half-made environment of an older release must be removed by hand)"
        )
    shutil.rmtree(directory, ignore_errors=True)
    try:
        python = _make(directory, version, cpu=cpu, say=say)
    except BaseException:  # Ctrl-C too
        say(f"removing what was made of {directory}")
        shutil.rmtree(directory, ignore_errors=True)
        raise
    say(f"SGLang {version} is ready in {directory}")
    return SGLangEnvironment(python, version, cpu)


def _make(directory: Path, version: str, *, cpu: bool, say: Callable[[str], None]) -> Path:
    say(f"making {directory}")
    directory.mkdir(parents=True)
    (directory / _MAKING).touch()
    python = begin_environment(directory)
    if cpu:
        _install_cpu(python, directory, version, say)
    else:
        say(f"installing sglang=={version} and what it pins (several gigabytes)")
        pip_install(python, "-q", f"sglang=={version}", _ROUTER)
    say("importing it once")
    probe = "import sglang.srt.entrypoints.http_server, sglang; print(sglang.__version__)"
    found = run_words([str(python), "-c", probe], env={"SGLANG_USE_CPU_ENGINE": "1"} if cpu else {})
    (directory / _MARKER).write_text(
        f"{found.split()[-1]} {'cpu' if cpu else 'cuda'}\n", encoding="utf-8"
    )
    (directory / _MAKING).unlink()
    return python


_MARKER = "areal-sdk-sglang"
"""File that is written last: an environment without it is half made."""
_MAKING = f"{_MARKER}.making"
"""File that marks an environment until it is whole. Without one of the two files, a directory is not ours to remove."""


def _read_marker(directory: Path) -> SGLangEnvironment | None:
    try:
        version, device = (directory / _MARKER).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return None
    return SGLangEnvironment(directory.absolute() / "bin" / "python", version, cpu=device == "cpu")


def _install_cpu(python: Path, directory: Path, version: str, say: Callable[[str], None]) -> None:
    say(f"installing {_CPU_TORCH}")
    pip_install(python, "-q", _CPU_TORCH)
    say(f"installing sglang=={version} against it")
    pip_install(python, "-q", "--no-deps", *_CPU_WITHOUT_DEPENDENCIES, f"sglang=={version}")
    constraints = directory / "constraints.txt"
    constraints.write_text(f"{_CPU_TORCH}\n", encoding="utf-8")
    pip_install(python, "-q", "-c", str(constraints), *_CPU_DEPENDENCIES)
    packages = _site_packages(directory)
    torchvision = packages / "torchvision" / "__init__.py"
    torchvision.write_text(_TORCHVISION_SCHEMAS + torchvision.read_text(encoding="utf-8"))
    kernel = packages / "sgl_kernel"
    kernel.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parent / "_cpu_kernel_stub" / "__init__.py", kernel / "__init__.py")


def _site_packages(directory: Path) -> Path:
    (packages,) = (directory / "lib").glob("python3.*/site-packages")
    return packages


OLDEST = "0.5.22"
"""Older servers can crash when new weights meet running requests (their cache flush asserts that
there are none); before 0.5.21 an update has no begin and end, before 0.5.19 tokens no version."""


def why_not(version: str) -> str:
    """The reason why a version cannot be used; empty when it can.

    >>> why_not("0.5.23.post1")
    ''
    >>> why_not("0.5.9")
    '0.5.22 or newer is needed: older ones can crash when new weights meet running requests'
    """
    if _numbers(version) >= _numbers(OLDEST):
        return ""
    return (
        f"{OLDEST} or newer is needed: older ones can crash when new weights meet running requests"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
