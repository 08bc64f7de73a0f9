"""The system calls that a program in a sandbox is refused, as a filter for the kernel.

Namespaces and limits leave holes, which the filter closes: memory that no process shows as its own
(memfd, System V, shared anonymous mappings), new namespaces, other processes' memory, and sockets that no
network namespace holds.
"""

import errno
import platform
import struct

_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""Sockets that stay inside a network namespace; AF_VSOCK, for one, reaches the host of a virtual machine."""

_NEW_NAMESPACES = 0x7E020000
"""The flags of clone for namespaces: user, pid, net, ipc, uts, cgroup and mount."""

# name: (x86_64, aarch64); the numbers are part of the kernel's interface and never change.
_REFUSED = {
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "ptrace": (101, 117),
    "chroot": (161, 51),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "init_module": (175, 105),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "finit_module": (313, 273),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "pidfd_getfd": (438, 438),
    "memfd_secret": (447, 447),
}
_NOT_IMPLEMENTED = {"memfd_create": (319, 279), "clone3": (435, 435)}
"""These are answered as an old kernel would, so that libraries take their other way."""
_SIGNALS = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
"""Refused where other processes can be seen; a namespace of processes makes them harmless."""
_CLONE, _SOCKET, _MMAP = (56, 220), (41, 198), (9, 222)
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
"""Both together are refused. The pages of such a mapping stay in memory after the program has unmapped
them, as long as one page is mapped, and nobody without privileges can count them."""
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables above, and the kernel's number of the architecture."""

_X32 = 0x40000000
"""Bit of the system calls of x32, which would pass under other numbers."""

_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 40
"""Offsets in the kernel's record of a call."""


def syscall_filter(*, has_namespaces: bool) -> bytes:
    """A program for `PR_SET_SECCOMP`; empty on a machine whose system calls have other numbers.

    `has_namespaces`: whether the program has a network and process numbers of its own. If not, it may open
    no socket and send no signal.

    >>> len(syscall_filter(has_namespaces=True)) % 8
    0
    """
    if platform.machine() not in _MACHINES:
        return b""
    column, architecture = _MACHINES[platform.machine()]
    refuse = _instruction(_RETURN, _ERRNO | errno.EPERM)
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32, 0, 1),
        _instruction(_RETURN, _KILL),
    ]
    for numbers in (_REFUSED if has_namespaces else _REFUSED | _SIGNALS).values():
        program += [_instruction(_EQUAL, numbers[column], 0, 1), refuse]
    for numbers in _NOT_IMPLEMENTED.values():
        program.append(_instruction(_EQUAL, numbers[column], 0, 1))
        program.append(_instruction(_RETURN, _ERRNO | errno.ENOSYS))
    program += [
        _instruction(_EQUAL, _CLONE[column], 0, 4),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_HAS_BIT, _NEW_NAMESPACES, 0, 1),
        refuse,
        _instruction(_LOAD, _NUMBER),
        _instruction(_EQUAL, _MMAP[column], 0, 4),
        _instruction(_LOAD, _FOURTH_ARGUMENT),
        _instruction(_HAS_BIT, _MAP_SHARED, 0, 2),
        _instruction(_HAS_BIT, _MAP_ANONYMOUS, 0, 1),
        refuse,
        _instruction(_LOAD, _NUMBER),
    ]
    families = list(_FAMILIES.values()) if has_namespaces else []
    program.append(_instruction(_EQUAL, _SOCKET[column], 0, len(families) + 2))
    program.append(_instruction(_LOAD, _FIRST_ARGUMENT))
    for index, family in enumerate(families):
        program.append(_instruction(_EQUAL, family, len(families) - index, 0))
    program += [refuse, _instruction(_RETURN, _ALLOW)]
    return b"".join(program)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
