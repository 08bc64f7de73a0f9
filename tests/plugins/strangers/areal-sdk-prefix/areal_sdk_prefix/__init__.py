"""The launcher `prefix`: each process of a run is started behind words of the user's.

areal-sdk train agent.py --launcher prefix --set 'cluster.prefix.words="nice -n 5"'
"""

from collections.abc import Callable

from areal_sdk import hookimpl


@hookimpl
def register_launchers(register: Callable[[str, str], None]) -> None:
    register("prefix", "areal_sdk_prefix.launcher:open_prefix")
