"""The command line of a program that is run without a shell: its words, its name, and what is wrong with it."""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from areal_sdk.errors import ConfigError

_NEEDS_A_SHELL = {"|", "||", "&", "&&", ";", ">", ">>", "<", "2>"}
_INTERPRETERS = {"python", "node", "deno", "bun", "bash", "sh", "zsh", "ruby", "perl", "lua"}
_NO_FILE = {"-c", "-m", "-e", "--eval"}
"""Options after which an interpreter runs no file."""
_SCRIPTS = {".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".rb", ".pl", ".lua"}


def command_name(line: str) -> str:
    """The name of a command's runs: the file that is run, else the program.

    >>> command_name("my-agent --fast")
    'my-agent'
    """
    words = split_command(line, find=False)
    files = [word for word in words[1:] if os.path.isfile(word)]
    return Path(files[0] if files else words[0]).stem


def split_command(line: str, *, find: bool = True) -> Sequence[str]:
    """The words of the command; ConfigError if it could not be run. Without `find` only its quotes are checked."""
    try:
        words = shlex.split(line)
    except ValueError as exc:
        raise ConfigError(f"command {line!r}: {exc}: close the quotes") from None
    if not words:
        raise ConfigError('command is empty: write what plays an episode, such as "node agent.js"')
    if not find:
        return words
    if found := _NEEDS_A_SHELL.intersection(words):
        raise ConfigError(
            f"command {line!r}: no shell reads {min(found)!r}: write sh -c {shlex.quote(line)}"
        )
    if shutil.which(words[0]) is None:
        cure = f"chmod +x {words[0]}" if Path(words[0]).is_file() else "install it, or give a path"
        raise ConfigError(f"command {line!r}: {words[0]!r} is no program here: {cure}")
    script = _script_of(words)
    if script and not Path(script).is_file():
        raise ConfigError(
            f"command {line!r}: there is no file {script!r} in {Path.cwd()}: give its path from there"
        )
    return words


def _script_of(words: Sequence[str]) -> str:
    """The file that an interpreter is to run; empty if no word surely names such a file.

    >>> _script_of(["python3", "-u", "agent.py", "--fast"]), _script_of(["sh", "-c", "cat x.sh"])
    ('agent.py', '')
    """
    if Path(words[0]).name.rstrip(".0123456789") not in _INTERPRETERS:
        return ""
    first = next((word for word in words[1:] if word in _NO_FILE or not word.startswith("-")), "")
    return first if Path(first).suffix in _SCRIPTS else ""
