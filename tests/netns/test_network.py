"""The machines that other tests run on: they reach one another, nothing else, and leave nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.netns.network import Machine, machines, why_not

pytestmark = pytest.mark.skipif(bool(why := why_not()), reason=why or "can")

PING = "import socket, sys; socket.create_connection((sys.argv[1], 8000), timeout=0.3)"
LISTEN = (
    "import socket, sys, time\n"
    "server = socket.create_server((sys.argv[1], 8000))\n"
    "print('up', flush=True)\n"
    "time.sleep(60)"
)


def reaches(here: Machine, there: Machine) -> bool:
    asked = (sys.executable, "-c", PING, there.address)
    return here.start(*asked, stdout=subprocess.DEVNULL).wait(10) == 0


def test_machines_reach_one_another_until_a_link_is_down_and_leave_nothing() -> None:
    with machines(3) as (here, there, other):
        listening = there.start(sys.executable, "-c", LISTEN, there.address, stdout=subprocess.PIPE)
        assert listening.stdout is not None
        with listening.stdout as told:
            assert told.readline() == "up\n"
            assert reaches(here, there)
            there.cut()
            assert not reaches(here, there)
            there.heal()
            assert reaches(here, there)
            here.forget(there)
            assert not reaches(here, there)
            assert reaches(other, there)
            here.remember(there)
            assert reaches(here, there)
            routes = here.start("ip", "route", stdout=subprocess.PIPE)
            assert "default" not in routes.communicate(timeout=60)[0]
    assert listening.wait(10) == -9
    assert not list(Path("/run/netns").glob(f"{here.name[:-2]}-*"))
    assert not list(Path("/dev/shm").glob(f"{here.name[:-2]}-*"))
