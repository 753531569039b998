"""Programs that try to leave the sandbox of `code`, to harm the server, or to get a verdict without the right values.

`ESCAPES` return the right value, n + 1, only if their attack works.  `FORGERIES` are run on a function whose values are
random numbers, which no program can compute.  `ENDLESS` need the limit of time.  `{canary}` is a file of the server.
"""

from __future__ import annotations

_C = "import ctypes\nC = ctypes.CDLL(None, use_errno=True)\n"


def _if(condition: str, head: str = "") -> str:
    """A function that is right if an expression is true and raises nothing."""
    return f"{head}import os, sys\ndef solve(n):\n    return n + 1 if ({condition}) else None"


def _c(call: str) -> str:
    """A function that is right if a call of the C library does not fail."""
    return _if(f"C.{call} != -1", _C)


ESCAPES: dict[str, str] = {
    # network
    "socket": _if("socket.socket()", "import socket\n"),
    "raw socket module": _if("_socket.socket()", "import _socket\n"),
    "download": _if("urllib.request.urlopen('http://127.0.0.1')", "import urllib.request\n"),
    "socket of the C library": _c("socket(2, 1, 0)"),
    "unix socket": _c("socket(1, 1, 0)"),
    "netlink socket": _c("socket(16, 3, 0)"),
    "socket pair": _c("socketpair(1, 1, 0, (ctypes.c_int * 2)())"),
    # processes
    "fork": _if("os.fork() >= 0"),
    "fork bomb": "import os\ndef solve(n):\n    while True:\n        try:\n            os.fork()\n"
    "        except OSError:\n            return None\n        return n + 1",
    "fork of the C library": _c("fork()"),
    "vfork": _c("syscall(58)"),
    "clone3": _c("syscall(435, bytes(88), 88)"),
    "thread": _if("_thread.start_new_thread(print, ())", "import _thread\n"),
    "shell": _if("os.system('true') == 0"),
    "exec": _if("os.execv('/bin/sh', ['sh', '-c', 'exit 0'])"),
    "exec from memory": _c("syscall(322, 3, b'', None, None, 0x1000)"),
    "subprocess": _if("subprocess.run(['true'])", "import subprocess\n"),
    "spawn": _if("os.posix_spawn('/bin/true', ['true'], {})"),
    # signals
    "kill the parent": _if("os.kill(os.getppid(), 9) is None"),
    "kill the first process": _if("os.kill(1, 15) is None"),
    "kill everything": _c("kill(-1, 9)"),
    "kill the group": _c("kill(0, 9)"),
    "stop the parent": _c("kill(C.getppid(), 19)"),
    "queue a signal": _c("sigqueue(1, 9, None)"),
    "alarm": _c("setitimer(0, bytes(32), None)"),
    # other processes' memory
    "trace the parent": _c("ptrace(16, C.getppid(), None, None)"),
    "read the parent's memory": _c("process_vm_readv(C.getppid(), None, 0, None, 0, 0)"),
    "memory file of the parent": _if("open(f'/proc/{os.getppid()}/mem', 'rb')"),
    # the server's files and environment
    "password file": _if("open('/etc/passwd').read()"),
    "the server's file": _if("open('{canary}').read()"),
    "file by the C library": _c("open(b'{canary}', 0)"),
    "environment": _if("os.environ or C.getenv(b'RL2F_CANARY')", _C + "C.getenv.restype = ctypes.c_char_p\n"),
    "environment of the worker": _if("open('/proc/self/environ').read()"),
    "environment of the first process": _if("open('/proc/1/environ').read()"),
    "root directory": _if("os.listdir('/')"),
    "directory above": _if("os.listdir('../../../../..')"),
    "change the root": _if("os.chroot('..') is None"),
    "pivot": _c("pivot_root(b'.', b'.')"),
    "open files": _if("[fd for fd in range(4, 200) if C.lseek(fd, 0, 1) != -1 or ctypes.get_errno() != 9]", _C),
    "file handle": _c("syscall(304, -100, bytes(128), 0)"),
    "server's modules": _if("__import__('rl2f_core')"),
    "site packages": _if("__import__('pip') or __import__('numpy')"),
    "devices": _if("open('/dev/null')"),
    # privileges
    "new user namespace": _c("unshare(0x10000000)"),
    "new network namespace": _c("unshare(0x40000000)"),
    "enter a namespace": _c("setns(3, 0)"),
    "mount": _c("mount(b'none', b'/', b'proc', 0, None)"),
    "become another user": _c("setuid(1)"),
    "regain capabilities": _c("prctl(47, 2, 21, 0, 0)"),
    "more memory": _if("resource.setrlimit(resource.RLIMIT_AS, (-1, -1)) is None", "import resource\n"),
    "more time": _if("resource.setrlimit(resource.RLIMIT_CPU, (-1, -1)) is None", "import resource\n"),
    "higher priority": _c("setpriority(0, 0, -5)"),
    "keyring": _c("syscall(250, 0, -3, 1)"),
    "bpf": _c("syscall(321, 0, bytes(128), 128)"),
    "io_uring": _c("syscall(425, 8, bytes(128))"),
    "system call of another ABI": _c("syscall(0x40000000 + 39)"),
    "kernel log": _c("klogctl(10, None, 0)"),
    "reboot": _c("reboot(0x4321fedc)"),
    # memory and disk
    "memory": _if("len([0] * 10 ** 9)"),
    "memory, step by step": "def solve(n):\n    parts = []\n    for i in range(600):\n"
    "        parts.append(bytes(1 << 20))\n    return n + 1",
    "shared memory": _c("shmget(0, 1 << 20, 0o1600)"),
    "message queue": _c("msgget(0, 0o1600)"),
    "memory file": _c("memfd_create(b'x', 0)"),
    "locked memory": _c("mlockall(3)"),
    "large file": _if("open('x', 'wb').write(bytes(1 << 20)) == 1 << 20"),
    "many files": _if("[open(f'{i}', 'wb').write(bytes(1 << 18)) for i in range(8)]"),
    "sparse file": _if("os.truncate('x', 1 << 40) is None", "open('x', 'w')\n"),
    "link": _if("os.symlink('/etc', 'x') is None"),
    # crashes and output
    "null pointer": _if("ctypes.string_at(0)", _C),
    "abort": _if("os.abort()"),
    "huge value": "def solve(n):\n    return 'a' * 10 ** 7",
    "deep value": "def solve(n):\n    value = []\n    for i in range(10 ** 4):\n        value = [value]\n"
    "    return value",
}
"""The numbers of `syscall` are those of x86-64; elsewhere they are calls that are refused as well."""

BLOCKED_BY_FILTER_ALONE = {
    "socket of the C library", "unix socket", "netlink socket", "socket pair", "kill the parent",
    "kill the first process", "stop the parent", "queue a signal", "alarm", "read the parent's memory", "keyring",
    "io_uring", "memory file", "link",
}  # fmt: skip
"""Calls that succeed without the filter of system calls, but reach nothing: the network namespace has no interface, and
the kernel drops signals to the first process of a PID namespace."""

FORGERIES: dict[str, str] = {
    "equal to everything": "class A:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
    "def solve(n): return A()",
    "a number equal to everything": "class A(int):\n    def __eq__(self, other): return True\n"
    "    __hash__ = int.__hash__\ndef solve(n): return A(7)",
    "a text equal to everything": "class A(str):\n    def __eq__(self, other): return True\n"
    "    __hash__ = str.__hash__\n    def __repr__(self): return 'expected'\ndef solve(n): return A()",
    "an object whose text is code": "class A:\n    def __repr__(self): return '[x for x in [1]]'\n"
    "def solve(n): return A()",
    "exit with success": "import sys\ndef solve(n): sys.exit(0)",
    "exit at once": "import os\ndef solve(n): os._exit(0)",
    "exit at import": "def solve(n): return 1\nraise SystemExit(0)",
    "handler at exit": "import atexit\natexit.register(print, 'passed')\ndef solve(n): return 1",
    "print that it passed": "def solve(n):\n    print('OK', 'passed', 'status: done')\n    return True",
    "assert nothing": "import builtins\nbuiltins.AssertionError = type('A', (), {})\n"
    "def solve(n): raise AssertionError",
    "frames": "import sys\ndef solve(n):\n    frame, seen = sys._getframe(), []\n    while frame is not None:\n"
    "        for value in [*frame.f_locals.values()]:\n            if isinstance(value, dict) and 'inputs' in value:\n"
    "                seen += [v for k, v in value.items() if k in ('expected', 'outputs', 'tests', 'answer')]\n"
    "        frame = frame.f_back\n    return seen[0][n]",
    "all objects": "import gc\ndef solve(n):\n    numbers = [o for o in gc.get_objects() if isinstance(o, list)]\n"
    "    found = [x for o in numbers for x in o if isinstance(x, int) and x > 10 ** 12]\n    return found[n]",
    "patch the encoder": "import __main__\n__main__.literal = lambda value, depth=0: 'True'\ndef solve(n): return 1",
    "patch json": 'import json\njson.dumps = lambda value: \'["passed", ""]\'\ndef solve(n): return 1',
    "patch the parser": "import ast\nast.literal_eval = lambda text: text\ndef solve(n): return n",
    "patch the reports": "import sys\ndef solve(n):\n    frame = sys._getframe().f_back\n"
    "    frame.f_locals['arguments'].clear()\n    return 1",
    "own results": "import os\ndef solve(n):\n"
    "    os.write(3, b'[\"returned\", \"True\"]\\n' * 50 + b'null\\n')\n    os._exit(0)",
    "results of all numbers": "import os\ndef solve(n):\n"
    "    os.write(3, b''.join(b'[\"returned\", \"%d\"]\\n' % i for i in range(999)))\n    os._exit(0)",
    "results of another form": "import os\ndef solve(n):\n"
    '    os.write(3, b\'{"status": "done", "correct": true}\\n\')\n    os._exit(0)',
    "nested results": "import os\ndef solve(n):\n    os.write(3, b'[' * 60000 + b'\\n')\n    os._exit(0)",
    "results that are no text": "import os\ndef solve(n):\n    os.write(3, b' \\xff\\x00\\n' * 9)\n    os._exit(0)",
    "results that are expressions": "import os\ndef solve(n):\n"
    '    os.write(3, b\'["returned", "__import__(1)"]\\n\')\n    os._exit(0)',
    "not a number": "def solve(n): return float('nan')",
    "infinity": "def solve(n): return float('inf')",
    "no function": "solve = 7",
    "a generator": "def solve(n):\n    yield n",
    "raise at import": "def solve(n): return 1\nraise ValueError",
}

ENDLESS: dict[str, str] = {
    "loop": "def solve(n):\n    while True:\n        pass",
    "sleep": "import time\ndef solve(n):\n    time.sleep(1000)",
    "catch everything": "def solve(n):\n    while True:\n        try:\n            while True: pass\n"
    "        except BaseException: pass",
    "ignore the limit of time": "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    "def solve(n):\n    while True: pass",
    "endless printing": "def solve(n):\n    while True: print('a' * 10000)",
    "endless results": "import os\ndef solve(n):\n    while True: os.write(3, b'a' * 60000)",
    "large power": "def solve(n): return 7 ** 7 ** 12",
    "backtracking": "import re\ndef solve(n): return re.match('(a*)*b', 'a' * 60)",
    "endless files": "import os\ndef solve(n):\n    while True:\n        try:\n"
    "            open('x', 'w').write('a' * 10 ** 5)\n"
    "        except OSError: pass",
    "endless forks": "import os\ndef solve(n):\n    while True:\n        try: os.fork()\n        except OSError: pass",
    "endless loop at import": "while True: pass\ndef solve(n): return n",
    "endless recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef solve(n):\n    return solve(n) + 1",
    "endless memory": "def solve(n):\n    while True:\n        try: x = [0] * 10 ** 7 * 9\n"
    "        except MemoryError: pass",
}
