"""The entry that the tests run in processes of the cluster."""

import os
from collections.abc import Mapping
from typing import Any

from areal_sdk.launcher import Channel


def rank(channel: Channel, args: Mapping[str, Any]) -> None:
    """Reports where it was placed, then waits for its end. `args["fails"]` names a rank that does not start."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if args.get("fails") == os.environ["RANK"]:
        raise ValueError("no such device")
    channel.ready({name: os.environ.get(name) for name in names})
    while channel.receive() is not None:
        pass
