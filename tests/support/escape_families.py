"""120 programs that attack the sandbox of `code`, in ten families of twelve.

Programs of the families `memory` and `expected` are run on a function whose values are `SECRETS`, which no program can
compute; an earlier attempt has returned them. All others return the right value, n + 1, only if their attack works.
`{folder}` is a writable folder of the server with the file `keep` and the folder `empty`. A program of `persistence`
is run twice: the second run finds what the first one left. The numbers of system calls are those of x86-64.
"""

from __future__ import annotations

from code_sandbox import WEAKER
from escape_programs import _C, _c, _if

SECRETS = [7_352_981_440_163, 9_118_204_773_529, 6_640_917_358_021]
SECRET_ATTEMPT = f"def solve(n):\n    values = {SECRETS}\n    return values[n]"

_MEMORY = r"""
import ctypes, gc, re, sys
C = ctypes.CDLL(None, use_errno=True)
C.sbrk.restype = C.malloc.restype = ctypes.c_void_p
C.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
SOURCE = re.compile(rb"values = \[(\d{13}), (\d{13}), (\d{13})\]")
RESULT = re.compile(rb'"returned\\?", \\?"(\d{13})\\?"')
def mapped(start, stop):
    page, first = start & ~4095, None
    while page < stop:
        here = C.madvise(page, 4096, 0) == 0
        if here and first is None:
            first = page
        if first is not None and not (here and page - first < 1 << 22):
            yield ctypes.string_at(first, page - first)
            first = page if here else None
        page += 4096
    if first is not None:
        yield ctypes.string_at(first, page - first)
def search(texts):
    results = []
    for text in texts:
        for match in SOURCE.finditer(text):
            return [*map(int, match.groups())]
        results += [int(value) for value in RESULT.findall(text)]
    return results[:3]
def region(address, before, after):
    return mapped(address - before, address + after)
heap = C.sbrk(0)
"""


def _memory(texts: str, more: str = "") -> str:
    """A function that returns the values that it finds in an iterable of bytes."""
    return f"{_MEMORY}{more}\nvalues = search({texts})\ndef solve(n):\n    return values[n]"


_REACHED = """
def reached(*roots, depth=5):
    seen, level = {}, [*roots]
    for _ in range(depth):
        level = [o for o in level if id(o) not in seen and not seen.update({id(o): o})]
        level = [o for o in gc.get_referents(*level) if type(o).__name__ not in ('type', 'function', 'module')]
    return [str(o).encode() for o in seen.values() if isinstance(o, (str, bytes, bytearray))]
frames = [sys._getframe()]
while frames[-1].f_back:
    frames.append(frames[-1].f_back)
"""

MEMORY: dict[str, str] = {
    "heap of the C library": _memory("region(heap, 1 << 26, 0)"),
    "arenas of objects": _memory(
        "(text for start in {id(o) >> 20 for o in gc.get_objects()} for text in mapped(start << 20, start + 1 << 20))"
    ),
    "arenas of texts": _memory(
        "(text for start in {id(s) >> 20 for o in gc.get_objects() if isinstance(o, dict) for s in o} "
        "for text in mapped(start << 20, start + 1 << 20))"
    ),
    "memory around a large object": _memory("region(id(large), 1 << 25, 1 << 25)", "large = bytes(1 << 22)"),
    "allocated again": _memory("(ctypes.string_at(C.malloc(size), size) for size in range(512, 60000, 64))"),
    "uninitialized bytes": _memory(
        "(new(None, size) for size in [*range(16, 60000, 32)])",
        "new = ctypes.pythonapi.PyBytes_FromStringAndSize\nnew.restype = ctypes.py_object\n"
        "new.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]",
    ),
    "stack": _memory("region(ctypes.addressof(local), 1 << 16, 1 << 16)", "local = ctypes.c_int()"),
    "data of the interpreter": _memory(
        "region(ctypes.addressof(ctypes.c_int.in_dll(ctypes.pythonapi, 'Py_IgnoreEnvironmentFlag')), 1 << 20, 1 << 20)"
    ),
    "all objects": _memory("reached(*gc.get_objects(), depth=3)", _REACHED),
    "frames": _memory("reached(*frames, *(f.f_locals for f in frames))", _REACHED),
    "caches": _memory(
        "reached(re._cache, linecache.cache, vars(sys.modules['__main__']), depth=4)", f"{_REACHED}\nimport linecache"
    ),
    "objects that are not freed yet": _memory(
        "reached(*gc.garbage, *gc.get_objects(2), *gc.get_objects(0), depth=4)", f"{_REACHED}\ngc.unfreeze()"
    ),
}


def _expected(values: str, head: str = "") -> str:
    """A function that returns items of the first list of large numbers in an iterable of objects."""
    return (
        f"import gc, os, sys\n{head}\ndef large(o):\n    try:\n"
        "        return len(o) >= 3 and min(o) > 10 ** 12 and [*o]\n    except Exception:\n        return None\n"
        f"def solve(n):\n    return next(filter(None, map(large, {values})))[n]"
    )


_WALK = """def walk():
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back"""

EXPECTED: dict[str, str] = {
    "globals": _expected("[*globals().values()]"),
    "all lists": _expected("gc.get_objects()"),
    "referents of all objects": _expected("gc.get_referents(*gc.get_objects())"),
    "locals of callers": _expected("(v for f in walk() for v in [*f.f_locals.values()])", _WALK),
    "globals of callers": _expected("(v for f in walk() for v in [*f.f_globals.values()])", _WALK),
    "modules": _expected("(v for m in [*sys.modules.values()] for v in [*vars(m).values()])"),
    "main module": _expected("[*vars(sys.modules['__main__']).values()]"),
    "frames of an exception": _expected(
        "caught()", "def caught():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n"
        "        frame = error.__traceback__.tb_frame.f_back\n"
        "        return [*frame.f_globals.values(), *frame.f_back.f_locals.values()]",
    ),
    "profile of the judge": _expected(
        "seen", "seen = []\nsys.setprofile(lambda f, *_: seen.extend(f.f_locals.values()))"
    ),
    "arguments": _expected("[[*map(int, sys.argv)], [*map(int, sys.orig_argv)]]"),
    "environment": _expected("[eval(v) for v in os.environ.values()]"),
    "open files": _expected(
        "read()", "def read():\n    for number in range(16):\n        try:\n            text = os.read(number, 60000)\n"
        "            yield eval(text)\n        except Exception:\n            pass",
    ),
}  # fmt: skip

NETWORK: dict[str, str] = {
    "TCP": _c("socket(2, 1, 6)"),
    "UDP": _c("socket(2, 2, 17)"),
    "IPv6": _c("socket(10, 1, 0)"),
    "raw IP": _c("socket(2, 3, 1)"),
    "packets": _c("socket(17, 3, 768)"),
    "Unix datagrams": _c("socket(1, 2, 0)"),
    "netlink of routes": _c("socket(16, 3, 0)"),
    "kernel's ciphers": _c("socket(38, 5, 0)"),
    "virtual machine": _c("socket(40, 1, 0)"),
    "Unix socket pair": _c("socketpair(1, 5, 0, (ctypes.c_int * 2)())"),
    "socket module": _if("_socket.socket(2, 2)", "import _socket\n"),
    "name of a host": _if("C.getaddrinfo(b'localhost', b'80', None, ctypes.byref(ctypes.c_void_p())) == 0", _C),
}

PROCESSES: dict[str, str] = {
    "fork": _if("os.fork() or os._exit(0)"),
    "forkpty": _if("os.forkpty()[0] >= 0"),
    "fork by number": _c("syscall(57)"),
    "clone": _c("syscall(56, 17, 0, 0, 0, 0)"),
    "clone3": _c("syscall(435, (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17), 88)"),
    "POSIX thread": _if("C.pthread_create(ctypes.byref(ctypes.c_ulong()), None, C.pause, None) == 0", _C),
    "thread": _if("_thread.start_new_thread(int, ())", "import _thread\n"),
    "timer thread": _if("threading.Timer(9, print).start() is None", "import threading\n"),
    "exec": _if("os.execv('/proc/self/exe', ['python', '-c', 'pass'])"),
    "exec by number": _c("syscall(59, b'/bin/true', None, None)"),
    "popen": _c("popen(b'true', b'r') or -1"),
    "spawn": _if("os.posix_spawnp('true', ['true'], {})"),
}

SIGNALS: dict[str, str] = {
    "kill the parent": _c("kill(C.getppid(), 9)"),
    "kill the first process": _c("kill(1, 9)"),
    "kill the group": _if("os.killpg(os.getpgid(os.getppid()), 9) is None"),
    "kill a thread of the parent": _c("syscall(200, C.getppid(), 9)"),
    "kill a thread of a group": _c("syscall(234, C.getppid(), C.getppid(), 9)"),
    "send information": _c("syscall(129, C.getppid(), 9, bytes(128))"),
    "open the parent": _c("syscall(434, C.getppid(), 0)"),
    "trace the parent": _c("ptrace(0x4206, C.getppid(), None, None)"),
    "read the parent's memory": _c(
        "process_vm_readv(C.getppid(), (ctypes.c_uint64 * 2)(0, 0), 1, (ctypes.c_uint64 * 2)(0, 0), 1, 0)"
    ),
    "write the parent's memory": _c(
        "process_vm_writev(C.getppid(), (ctypes.c_uint64 * 2)(0, 0), 1, (ctypes.c_uint64 * 2)(0, 0), 1, 0)"
    ),
    "limits of the parent": _c("prlimit(C.getppid(), 7, (ctypes.c_uint64 * 2)(1, 1), None)"),
    "timer": _c("setitimer(0, (ctypes.c_long * 4)(0, 0, 99, 0), None)"),
}

READS: dict[str, str] = {
    "file": _if("open('{folder}/keep').read()"),
    "file by number": _c("syscall(257, -100, b'{folder}/keep', 0)"),
    "openat2": _c("syscall(437, -100, b'{folder}/keep', bytes(24), 24)"),
    "size of a file": _if("os.stat('{folder}/keep').st_size"),
    "existence of a file": _if("os.path.exists('{folder}/keep') or os.access('{folder}/keep', os.R_OK)"),
    "folder": _if("'keep' in os.listdir('{folder}')"),
    "lines of a source file": _if("linecache.getlines('{folder}/keep')", "import linecache\n"),
    "import from a folder": _if("__import__('module')", "import sys\nsys.path.append('{folder}')\n"),
    "loader of data": _if(
        "SourceFileLoader('x', 'x').get_data('{folder}/keep')", "from importlib.machinery import SourceFileLoader\n"
    ),
    "memory map of a process": _if("open('/proc/self/maps').read()"),
    "environment of the server": _if("any(open(f'/proc/{i}/environ').read() for i in range(1, 99))"),
    "link": _if("os.readlink('/proc/self/exe')"),
}

WRITES: dict[str, str] = {
    "create": _if("open('{folder}/new', 'w')"),
    "overwrite": _if("open('{folder}/keep', 'w').write('x')"),
    "append": _if("os.write(os.open('{folder}/keep', os.O_WRONLY | os.O_APPEND), b'x')"),
    "truncate": _c("truncate(b'{folder}/keep', 0)"),
    "remove": _if("os.remove('{folder}/keep') is None"),
    "remove a folder": _if("os.rmdir('empty', dir_fd=os.open('{folder}', os.O_PATH)) is None"),
    "rename": _c("rename(b'{folder}/keep', b'{folder}/new')"),
    "make a folder": _c("mkdir(b'{folder}/new', 511)"),
    "link": _c("link(b'{folder}/keep', b'{folder}/new')"),
    "symbolic link": _c("symlink(b'/', b'{folder}/new')"),
    "mode": _c("chmod(b'{folder}/keep', 511)"),
    "file without a name": _if("os.open('{folder}', os.O_TMPFILE | os.O_RDWR)"),
}

PRIVILEGES: dict[str, str] = {
    "user namespace": _c("unshare(0x10000000)"),
    "mount namespace": _c("unshare(0x00020000)"),
    "mount": _c("mount(b'none', b'/', b'tmpfs', 0, None)"),
    "new mount": _c("syscall(430, b'proc', 0)"),
    "root directory": _if("os.chroot('/') is None"),
    "user": _if("os.setresuid(1, 1, 1) is None"),
    "capabilities": _c("syscall(126, (ctypes.c_uint32 * 2)(0x20080522, 0), b'\\xff' * 24)"),
    "io_uring": _c("syscall(425, 8, bytes(128))"),
    "keyring": _c("syscall(250, 0, -3, 1)"),
    "memory file": _c("syscall(319, b'x', 0)"),
    "performance events": _c("syscall(298, bytes(128), 0, -1, -1, 0)"),
    "second filter": _c("syscall(317, 1, 0, None) * 0 or C.prctl(22, 2, bytes(16), 0, 0)"),
}

RESOURCES: dict[str, str] = {
    "one large object": _if("len(bytearray(300 << 20))"),
    "many objects": _if("len([bytes(1 << 20) for _ in range(300)])"),
    "mapped memory": _if(
        "C.mmap(None, 300 << 20, 3, 34, -1, 0) != 2 ** 64 - 1", _C
        + "C.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 4\n"
        "C.mmap.restype = ctypes.c_size_t\n"
    ),
    "more memory": _if("resource.setrlimit(resource.RLIMIT_AS, (-1, -1)) is None", "import resource\n"),
    "more CPU time": _if("resource.prlimit(0, resource.RLIMIT_CPU, (99, 99))", "import resource\n"),
    "large file": _if("open('x', 'wb', 0).write(bytes(1 << 20)) == 1 << 20"),
    "many files": _if("len([open(str(i), 'w') for i in range(99)])"),
    "full disk": _if("sum(open(str(i), 'wb', 0).write(bytes(1 << 18)) for i in range(8)) == 8 << 18"),
    "hole in a file": _if("os.ftruncate(os.open('x', os.O_CREAT | os.O_RDWR), 1 << 40) is None"),
    "priority": _c("setpriority(0, 0, -9)"),
    "locked memory": _c("mlockall(1)"),
    "processor affinity": _if("os.sched_setaffinity(0, [0]) is None"),
}  # fmt: skip


def _left(find: str, leave: str) -> str:
    """A function that is right if an expression is true before a statement runs."""
    return (
        "import builtins, ctypes, os, random, sys\nC = ctypes.CDLL(None, use_errno=True)\n"
        f"try:\n    left = {find}\nexcept Exception:\n    left = 0\ntry:\n    {leave}\nexcept Exception:\n    pass\n"
        "def solve(n):\n    return n + 1 if left else None"
    )


PERSISTENCE: dict[str, str] = {
    "file": _left("open('left')", "open('left', 'w')"),
    "temporary file": _left("open('/tmp/rl2f-left')", "open('/tmp/rl2f-left', 'w')"),
    "shared memory file": _left("open('/dev/shm/rl2f-left')", "open('/dev/shm/rl2f-left', 'w')"),
    "shared memory": _left("C.shmget(77, 4096, 0) != -1", "C.shmget(77, 4096, 0o1666)"),
    "message queue": _left("C.msgget(77, 0) != -1", "C.msgget(77, 0o1666)"),
    "semaphore": _left("C.semget(77, 1, 0) != -1", "C.semget(77, 1, 0o1666)"),
    "key": _left("C.syscall(249, b'user', b'left', None, -4) > 0", "C.syscall(248, b'user', b'left', b'x', 1, -4)"),
    "process": _left("C.kill(-1, 0) == 0 and C.getppid() == 1 < C.syscall(39) - 3", "os.fork() or C.pause()"),
    "builtins": _left("builtins.left", "builtins.left = True"),
    "module": _left("'left' in sys.modules", "sys.modules['left'] = sys"),
    "environment": _left("C.getenv(b'LEFT')", "C.setenv(b'LEFT', b'x', 1)"),
    "random numbers": _left("random.getstate() == random.Random(7).getstate()", "random.seed(7)"),
}

FAMILIES: dict[str, dict[str, str]] = {
    "memory": MEMORY,
    "expected": EXPECTED,
    "network": NETWORK,
    "processes": PROCESSES,
    "signals": SIGNALS,
    "reads": READS,
    "writes": WRITES,
    "privileges": PRIVILEGES,
    "resources": RESOURCES,
    "persistence": PERSISTENCE,
}

_FILTER = ("elif filtered:\n            filter_system_calls()", "elif filtered:\n            pass")
GUARDS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "memory": (
        "heap of the C library",
        [
            ("        child = os.fork()\n", "        job = read_job(os.getppid(), pipes)\n        child = os.fork()\n"),
            ("be_job(template, pipes, isolated, filtered)", "be_job(job, pipes, isolated, filtered)"),
            ("def be_job(template: int,", "def be_job(job,"),
            ("        job = read_job(template, pipes)\n        null", "        null"),
        ],
    ),
    "network": ("TCP", [_FILTER]),
    "processes": ("fork", [_FILTER, ("resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))", "pass")]),
    "signals": ("kill the first process", [_FILTER]),
    "reads": ("file", [WEAKER, ("filter_system_calls(files=False)", "filter_system_calls()")]),
    "writes": ("create", [WEAKER, ("filter_system_calls(files=False)", "filter_system_calls()")]),
    "privileges": ("io_uring", [_FILTER]),
    "resources": ("mapped memory", [('set_limits(job["cpu_seconds"], job["memory_bytes"])', "pass")]),
    "persistence": ("semaphore", [_FILTER]),
}
"""A program of each family and the changes of the worker program with which it succeeds.

The guard of `expected` is that no expected value is in a job."""
