"""Entries that the tests of `areal_sdk.process` run in real children."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from areal_sdk.process import JSON, Channel, Request
from areal_sdk.process import channel as channel_module
from areal_sdk.process.network.guests import GuestDoor


def serve(channel: Channel, args: Mapping[str, JSON]) -> None:
    """Answers a few methods until it is asked to leave."""
    sys.stdout.write(f"hello from {args.get('who', 'nobody')}\n")
    channel.ready({"pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]})
    while True:
        request = channel.receive()
        assert request is not None
        try:
            METHODS[request.method](request)
        except ValueError as exc:
            request.fail(exc)


def serve_guests(channel: Channel, args: Mapping[str, JSON]) -> None:
    """Answers guests too; `hold` waits for `release`."""
    channel_module.GUEST_READS_WITHIN_S = 1
    door = GuestDoor(channel, token="secret")
    channel.ready({"port": door.port})
    held: list[Request] = []
    num_floods = 0
    while True:
        request = channel.receive()
        assert request is not None
        held = [other for other in held if not other.cancelled]
        match request.method:
            case "hold":
                held.append(request)
            case "held":
                request.reply(sorted(other.payload for other in held))
            case "release":
                request.reply()
                for other in held:
                    other.reply(other.payload)
            case "flood":
                request.reply(None, [b"x" * 50_000_000])
                num_floods += 1
            case "num_floods":
                request.reply(num_floods)
            case method:
                METHODS[method](request)


def echo(request: Request) -> None:
    request.reply(request.payload, request.buffers)


def pid(request: Request) -> None:
    request.reply(os.getpid())


def fail(request: Request) -> None:
    raise ValueError(request.payload)


def hang(request: Request) -> None:
    while not request.channel.is_closed:
        time.sleep(0.01)


def spin(request: Request) -> None:
    while True:
        pass


def kill(request: Request) -> None:
    sys.stderr.write("about to die\n")
    os.kill(os.getpid(), signal.SIGKILL)


def leave(request: Request) -> None:
    request.reply("bye", [b"x" * 3_000_000])
    os._exit(3)


def litter(request: Request) -> None:
    """Start a grandchild that would outlive its parent."""
    request.reply(subprocess.Popen(["sleep", "1000"]).pid)


def count(request: Request) -> None:
    """Stream numbers until cancelled or at the limit; remembers how far it came."""
    progress["reached"] = 0
    for number in range(request.payload["to"]):
        if request.cancelled:
            return
        progress["reached"] = number + 1
        request.emit(number, [b"%d" % number])
        time.sleep(request.payload["pause_s"])
    request.finish({"total": request.payload["to"]})


def reached(request: Request) -> None:
    request.reply(progress["reached"])


progress = {"reached": 0}
METHODS = {
    f.__name__: f for f in (echo, pid, fail, hang, spin, kill, leave, litter, count, reached)
}


def never_ready(channel: Channel, args: Mapping[str, JSON]) -> None:
    time.sleep(1000)


def refuses(channel: Channel, args: Mapping[str, JSON]) -> None:
    raise ValueError("no such model: 'smol'")


def deaf(channel: Channel, args: Mapping[str, JSON]) -> None:
    """Ignores every polite request to leave."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel.ready()
    while True:
        time.sleep(1)


def one_at_a_time(channel: Channel, args: Mapping[str, JSON]) -> None:
    """A worker for pools. Refuses to start while the file `args["broken"]` exists."""
    if os.path.exists(args.get("broken", "")):
        raise ValueError("this worker is broken")
    serve(channel, args)


class Scorer:
    class Inner:
        def score(self) -> float:
            return 0.5


def rank(channel: Channel, args: Mapping[str, JSON]) -> None:
    """Reports where it was placed, then serves; `args["fails"]` names a rank that does not start.

    `args["loads_for_s"]`: how long it takes to be ready.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if args.get("fails") == os.environ["RANK"]:
        raise ValueError("no such device")
    time.sleep(float(args.get("loads_for_s", 0.0)))
    channel.ready({name: os.environ.get(name) for name in names})
    while True:
        request = channel.receive()
        assert request is not None
        METHODS[request.method](request)


def tell_environment(channel: Channel, args: Mapping[str, JSON]) -> None:
    """Tell the variables of this process."""
    channel.ready(dict(os.environ))
    channel.receive()
