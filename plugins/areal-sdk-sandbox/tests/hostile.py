"""Hostile programs. Each tries to reach something outside of its sandbox, or to use up the machine.

A program that gets through prints `ESCAPED`, or writes to the canary. `{secret}`, `{canary}`, `{port}`
and `{socket}` are things of the test: files, and servers that nobody may reach.
"""

from dataclasses import dataclass

_FORK = "import os, time\n"
_BUSY_CHILDREN = (
    "for _ in range(8):\n  reader, writer = os.pipe()\n  if os.fork() == 0:\n"
    "    while time.process_time() < 0.8: pass\n    os._exit(0)\n"
    "  os.close(writer); os.read(reader, 1)\n"
)
"""Each ends before the next begins, which the parent sees by the end of a pipe."""


@dataclass(frozen=True, slots=True)
class Hostile:
    """One program, and how it ends."""

    name: str
    code: str
    ends: str = ""
    """The limits of which one ends it, in words; empty if it ends by itself."""
    only_isolated: bool = False
    """Whether limits alone do not hold it, when its user is an ordinary one."""


HOSTILE = [
    Hostile(
        "fork_bomb",
        _FORK + "while True:\n  try: os.fork()\n  except OSError: pass",
        "processes memory",
    ),
    Hostile(
        "thread_bomb",
        "import threading, time\nwhile True:\n"
        "  try: threading.Thread(target=time.sleep, args=(60,)).start()\n  except RuntimeError: time.sleep(1)",
        "processes",
    ),
    Hostile("memory", "x = []\nwhile True: x.append(bytearray(1 << 20))", "memory"),
    Hostile(
        "memory_of_children",
        _FORK
        + "for _ in range(8):\n  if os.fork() == 0:\n    x = bytearray(40 << 20); time.sleep(60)\ntime.sleep(60)",
        "memory",
    ),
    Hostile(
        "memory_shared_with_children_that_come_and_go",
        _FORK + "x = bytearray(150 << 20)\nwhile True:\n"
        "  if os.fork() == 0: time.sleep(0.01); os._exit(0)\n"
        "  try: os.waitpid(-1, os.WNOHANG)\n  except OSError: pass\n  time.sleep(0.003)",
        "memory",
    ),
    Hostile(
        "shared_memory",
        "import mmap\nmmap.mmap(-1, 1 << 20); print('ESCAPED')",
    ),
    Hostile(
        "shared_memory_of_the_zeros",
        "import mmap, os\nmmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20); print('ESCAPED')",
        only_isolated=True,
    ),
    Hostile("memory_in_no_process", "import os\nos.memfd_create('x'); print('ESCAPED')"),
    Hostile(
        "system_v_memory",
        "import ctypes\nif ctypes.CDLL(None).shmget(0, 1 << 30, 0o1600) != -1: print('ESCAPED')",
    ),
    Hostile("sleep", "import time\ntime.sleep(600)", "wall"),
    Hostile(
        "stops_itself",
        "import os, signal\ntry: os.kill(os.getpid(), signal.SIGSTOP)\nexcept OSError: pass\nwhile True: pass",
        "wall cpu",
    ),
    Hostile("busy", "while True: pass", "cpu wall"),
    Hostile(
        "busy_and_deaf",
        "import signal\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n"
        "  except (OSError, ValueError): pass\nwhile True: pass",
        "cpu wall",
    ),
    Hostile("busy_children", _FORK + "for _ in range(4): os.fork()\nwhile True: pass", "cpu wall"),
    Hostile(
        "busy_children_that_nobody_waits_for",
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n" + _BUSY_CHILDREN,
        "cpu",
    ),
    Hostile(
        "busy_children_that_stay_zombies",
        "import os, time\n" + _BUSY_CHILDREN + "time.sleep(60)",
        "cpu",
    ),
    Hostile(
        "memory_of_a_process_whose_main_thread_ended",
        "import ctypes, platform, threading, time\n"
        "def work(): x = bytearray(150 << 20); time.sleep(60)\n"
        "threading.Thread(target=work).start()\n"
        "ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)",
        "memory",
    ),
    Hostile("huge_stdout", "while True: print('x' * 10000)", "output"),
    Hostile("huge_stderr", "import os\nwhile True: os.write(2, b'x' * 65536)", "output"),
    Hostile(
        "full_disk",
        "import os\nn = 0\ntry:\n  for i in range(99):\n    with open('/tmp/' + str(i), 'wb') as f:\n"
        "      for _ in range(64): n += f.write(bytes(1 << 20))\nexcept OSError: pass\n"
        "if n > 100 << 20: print('ESCAPED')",
        only_isolated=True,
    ),
    Hostile(
        "full_shared_memory",
        "n = 0\ntry:\n  for i in range(64):\n    with open('/dev/shm/' + str(i), 'wb') as f: n += f.write(bytes(4 << 20))\n"
        "except OSError: pass\nif n > 100 << 20: print('ESCAPED')",
        only_isolated=True,
    ),
    Hostile(
        "network",
        "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2); print('ESCAPED')",
    ),
    Hostile(
        "network_by_abstract_socket",
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0{socket}'); print('ESCAPED')",
    ),
    Hostile(
        "network_of_the_host",
        "import socket\nsocket.socket(40, socket.SOCK_STREAM); print('ESCAPED')",
    ),
    Hostile("reads_a_file", "print('ESCAPED', open({secret!r}).read())", only_isolated=True),
    Hostile(
        "reads_by_symlink",
        "import os\nos.symlink({secret!r}, 'link')\nprint('ESCAPED', open('link').read())",
        only_isolated=True,
    ),
    Hostile("writes_a_file", "open({canary!r}, 'w').write('ESCAPED')", only_isolated=True),
    Hostile(
        "writes_by_symlink",
        "import os\nos.symlink({canary!r}, 'link')\nopen('link', 'w').write('ESCAPED')",
        only_isolated=True,
    ),
    Hostile(
        "writes_to_python",
        "import sys, os\nopen(os.path.join(sys.base_prefix, 'escaped.pth'), 'w'); print('ESCAPED')",
        only_isolated=True,
    ),
    Hostile(
        "writes_home",
        "import os, pwd\nopen(pwd.getpwuid({uid}).pw_dir + '/.escaped', 'w'); print('ESCAPED')",
        only_isolated=True,
    ),
    Hostile(
        "reads_environments",
        "import glob\nfor name in glob.glob('/proc/[0-9]*/environ'):\n  try: text = open(name).read()\n"
        "  except OSError: continue\n  if 'SECRET-OF-THE-TEST' in text: print('ESCAPED', name)",
        only_isolated=True,
    ),
    Hostile(
        "reads_variables", "import os\nif 'AREAL_SDK_TEST_SECRET' in os.environ: print('ESCAPED')"
    ),
    Hostile(
        "uses_open_files",
        "import os\nfor n in range(3, 256):\n  try: os.fstat(n); print('ESCAPED', n)\n  except OSError: pass",
    ),
    Hostile("signals_its_parent", "import os\nos.kill(os.getppid(), 9)"),
    Hostile("signals_everybody", "import os\nos.kill(-1, 9)"),
    Hostile(
        "signals_the_test",
        "import os\nfor n in ({pid}, -{pid}):\n  try: os.kill(n, 9)\n  except OSError: pass",
    ),
    Hostile(
        "leaves_a_daemon",
        _FORK
        + "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    time.sleep(60); marker = '{marker}'\n  os._exit(0)",
    ),
    Hostile(
        "leaves_a_daemon_without_variables",
        "import os, sys\nif os.fork() == 0:\n  os.setsid()\n"
        "  os.execve(sys.executable, ['python3', '-c', 'import time; time.sleep(60)', '{marker}'], {{}})",
    ),
    Hostile(
        "daemon_holds_the_output",
        _FORK
        + "if os.fork() == 0:\n  os.setsid(); marker = '{marker}'\n  while True: time.sleep(1); print('late', flush=True)",
    ),
    Hostile("exits_at_once", "import os\nos._exit(0)"),
    Hostile("closes_everything", "import os\nos.closerange(0, 256)\nos._exit(3)"),
    Hostile(
        "traces_its_parent",
        "import ctypes, os\nif ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0: print('ESCAPED')",
    ),
    Hostile(
        "new_namespaces",
        "import ctypes\nlibc = ctypes.CDLL(None)\nif any(libc.unshare(1 << n) == 0 for n in range(25, 31)): print('ESCAPED')",
    ),
    Hostile(
        "mounts",
        "import ctypes\nif ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0: print('ESCAPED')",
    ),
    Hostile(
        "becomes_root",
        "import os\nfor n in (0, 1):\n  try: os.setuid(n); print('ESCAPED' if {is_root} else '')\n  except OSError: pass",
    ),
    Hostile(
        "kernel_keys",
        "import ctypes\nif ctypes.CDLL(None).syscall(248, b'user', b'x', b'y', 1, -3) > 0: print('ESCAPED')",
    ),
    Hostile("deep_recursion_in_c", "import ctypes\nctypes.string_at(0)"),
    Hostile(
        "many_files",
        "import os\nfiles = []\ntry:\n  while True: files.append(os.open('/dev/null', 0))\nexcept OSError: pass\nif len(files) > 1000: print('ESCAPED')",
    ),
]

IN_THE_KERNEL = {
    "empty files": """
import os
for number in range(10**9): os.close(os.open(f"/tmp/{number}", os.O_CREAT | os.O_WRONLY))
""",
    "links": """
import os
os.close(os.open("/tmp/one", os.O_CREAT))
for number in range(10**9): os.link("/tmp/one", f"/tmp/{number}")
""",
    "buffers of sockets": """
import os, socket, time
for _ in range(4): os.fork()
kept = [socket.socketpair() for _ in range(120)]
for a, _ in kept:
    a.setblocking(False)
    try:
        while True: a.send(bytes(1 << 16))
    except BlockingIOError: pass
time.sleep(600)
""",
    "sockets on their way": """
import array, os, socket, time
a, b = socket.socketpair()
try:
    while True:
        c, d = socket.socketpair()
        a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [c.fileno(), d.fileno()]))])
        c.close(); d.close()
except OSError: time.sleep(600)
""",
    "page tables": """
import mmap, time
size = 1 << 44
m = mmap.mmap(-1, size, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
for at in range(0, size, 1 << 21): m[at]
time.sleep(600)
""",
}
"""Programs that take memory which no process shows as its own: they end at the limit of memory."""
