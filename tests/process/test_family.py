"""All members of a family are found, whatever they are doing."""

import os
import subprocess
from pathlib import Path

from areal_sdk.process.family import FAMILY_VARIABLE, end_family, members, new_family
from tests.toolbox.waiting import wait_until

LOOKS = 150


def test_a_member_in_the_middle_of_exec_is_found(tmp_path: Path) -> None:
    """Its environment is empty for a moment. Whoever looks then must not think that the family is gone."""
    family = new_family({})
    script, up = tmp_path / "again.sh", tmp_path / "up"
    script.write_text(f'#!/bin/sh\n: > {up}\nexec "$0"\n')
    script.chmod(0o755)
    process = subprocess.Popen([str(script)], env={**os.environ, FAMILY_VARIABLE: family})
    wait_until(up.exists)
    try:
        assert [members(family) for _ in range(LOOKS)] == [[process.pid]] * LOOKS
    finally:
        end_family(family)
        process.wait()
    assert process.returncode < 0, "a signal ended it"
    assert members(family) == []
