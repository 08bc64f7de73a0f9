"""The command line of bubblewrap: the files that a program sees, and the resources that it cannot reach."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from areal_sdk_sandbox.limits import Limits

_SHARED_MEMORY_MB = 16
"""Megabytes of /dev/shm, where semaphores are."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
NOT_ONES_OWN = frozenset(
    {".", "..", "dev", "etc", "proc", "sys", "tmp", *(name[1:] for name in _SYSTEM)}
)
"""Names at the root that a sandbox has already."""
_OF_ETC = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "localtime",
    "nsswitch.conf",
)
"""The files that programs need to start. Nothing of /etc names users, hosts or secrets."""


def bubblewrap_words(
    program: str,
    limits: Limits,
    *,
    readable: Sequence[str],
    files: Mapping[str, int],
    writable: Sequence[str] = (),
) -> list[str]:
    """`bwrap` and its options. `files`: descriptors of what is put into /tmp, by name.

    As root no user namespace is needed, and root may then become a user of whom the kernel counts the
    processes: of root it counts none.
    """
    words = [program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--hostname", "sandbox"]
    words += ["--cap-drop", "ALL"]
    if os.getuid() == 0:
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user"]
    size = str(limits.disk_mb << 20)
    words += ["--dev", "/dev", "--proc", "/proc"]
    words += ["--dev-bind", "/dev/full", "/dev/zero"]  # reads the same, and maps no memory
    words += ["--perms", "1777", "--size", str(_SHARED_MEMORY_MB << 20), "--tmpfs", "/dev/shm"]
    for name in ("/tmp", *writable):  # before what can be read, which may lie below
        words += ["--perms", "1777", "--size", size, "--tmpfs", name]
    for name in _SYSTEM:
        words += _as_it_is(Path(name))
    words += ["--perms", "0755", "--dir", "/etc"]
    for name in _OF_ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    packages = [one for one in sys.path if one.endswith(("/site-packages", "/dist-packages"))]
    for name in dict.fromkeys((sys.base_prefix, sys.prefix, *packages, *readable)):
        if not name.startswith("/usr/"):
            words += [*_open_parents(Path(name)), "--ro-bind-try", name, name]
    for name, descriptor in files.items():
        words += ["--perms", "0644", "--file", str(descriptor), f"/tmp/{name}"]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--"]


def _open_parents(path: Path) -> list[str]:
    """Directories to `path` that every user may pass; bubblewrap would make them for root alone."""
    parents = [str(parent) for parent in reversed(path.parents) if parent != Path("/")]
    return [
        word
        for one in parents
        if one not in ("/tmp", "/usr")
        for word in ("--perms", "0755", "--dir", one)
    ]


def _as_it_is(path: Path) -> list[str]:
    if path.is_symlink():
        return ["--symlink", os.readlink(path), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.exists() else []
