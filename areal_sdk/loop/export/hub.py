"""Uploads of exported models to a model hub, through huggingface_hub (`HF_ENDPOINT`, `HF_TOKEN`)."""

import re
from pathlib import Path

from areal_sdk.errors import ArealError, ConfigError, MissingExtraError

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"


class PushError(ArealError):
    """An exported model was not uploaded."""


def check_name(name: str) -> None:
    """Raise ConfigError if `name` is no name of a repository, or if nothing could be uploaded at all."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--push {name!r}: give the name of a model repository, as OWNER/NAME")
    try:
        from huggingface_hub import get_token
    except ImportError:
        raise MissingExtraError("huggingface_hub", extra="train", needed_for="--push") from None
    if get_token() is None:
        raise ConfigError(f"--push needs a token of the hub: {_LOG_IN}")


def push(directory: Path, name: str, *, private: bool = False) -> str:
    """Upload `directory` as the model `name`, which is made if needed. Returns its address."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # the latter: of its HTTP library

    api, where = HfApi(), f"{constants.ENDPOINT} (HF_ENDPOINT)"
    try:
        repo = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            folder_path=directory,
            repo_id=repo.repo_id,
            commit_message="Upload a model trained with areal-sdk",
        )
    except HfHubHTTPError as exc:
        status = exc.response.status_code
        if status == 401:
            raise PushError(f"{where} does not accept the token: {_LOG_IN}") from exc
        if status == 403:
            raise PushError(
                f"{where}: the token may not write {name}: choose a name of your own or of an "
                f"organisation that you are in, or {_LOG_IN}"
            ) from exc
        raise PushError(f"{where} refused {name}: {_first_line(exc)}") from exc
    except (HTTPError, OSError, RuntimeError) as exc:  # the last: a file that did not arrive
        why = exc.__cause__ or exc
        raise PushError(
            f"{where} cannot be reached ({type(why).__name__}: {_first_line(why)}): look at the "
            "connection, then push again"
        ) from exc
    return str(repo)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
