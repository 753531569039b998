"""The worker program that runs untrusted Python functions in a sandbox.

It exchanges one JSON object per line on private pipes. The pool starts it as a file with an empty environment, so it
imports nothing of this project. It imports the modules of `MODULES`, gives up root and enters new user, network, PID,
mount, IPC and UTS namespaces. Each job runs in a fork of it, which keeps one pipe, for its results, and has

- an empty root directory of its own, in memory and at most `DIRECTORY_BYTES` large;
- no capabilities, limits on CPU time, memory, file size, open files and processes;
- a seccomp filter that allows only the system calls of `SYSTEM_CALLS`: no socket, signal, process or `exec`.

A job receives inputs and no expected values.  After its wall-clock limit, or when it ends, every process of the PID
namespace is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import platform
import secrets
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

with contextlib.suppress(ImportError):  # Windows, where this program does not run
    import resource

MODULES = (
    "_strptime abc array bisect calendar cmath collections.abc copy dataclasses datetime decimal enum fractions "
    "functools hashlib heapq itertools json math numbers operator random re statistics string textwrap typing "
    "unicodedata encodings.ascii encodings.latin_1 encodings.unicode_escape"
).split()
"""Modules that a program can import; no others, because its root directory is empty."""
DIRECTORY_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 19
MAX_OPEN_FILES = 16
NOBODY = 65534
NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""Mount, UTS, IPC, PID and network; the user namespace (0x10000000) comes first."""
SYSTEM_CALLS = {
    "x86_64": (
        0xC000003E,
        "0 1 3 5 8 9 10 11 12 13 14 15 17 24 25 28 35 39 60 79 87 96 102 104 107 108 110 131 186 201 202 217 219 228 "
        "229 230 231 257 262 263 318 332 334",
    ),
    "aarch64": (
        0xC00000B7,
        "63 64 57 80 62 222 226 215 214 134 135 139 67 124 216 233 101 172 93 17 35 169 174 176 175 177 173 132 178 98 "
        "61 128 113 114 115 94 56 79 278 291 293",
    ),
}
"""Audit number of an architecture and the numbers of its calls: read, write, close, fstat, lseek, mmap, mprotect,
munmap, brk, rt_sigaction, rt_sigprocmask, rt_sigreturn, pread64, sched_yield, mremap, madvise, nanosleep, getpid, exit,
getcwd, unlink(at), gettimeofday, get(e)uid, get(e)gid, getppid, sigaltstack, gettid, time, futex, getdents64,
restart_syscall, clock_gettime, clock_getres, clock_nanosleep, exit_group, openat, newfstatat, getrandom, statx and
rseq."""
NO_NEW_PRIVS, SET_SECCOMP, SET_DUMPABLE, SET_DEATH_SIGNAL, DROP_BOUNDING = 38, 22, 4, 1, 24
DETACH = 2
"""Flag of umount2."""
libc = ctypes.CDLL(None, use_errno=True)


class Missing(Exception):
    """The kernel refused a part of the sandbox."""


def call(name: str, *args: object) -> None:
    """Call a function of the C library. Raises `Missing` if that fails."""
    try:
        function = getattr(libc, name)
    except AttributeError:
        raise Missing(f"{name}: not on this system") from None
    if function(*args) < 0:
        raise Missing(f"{name}: {os.strerror(ctypes.get_errno())}")


# -- isolation -----------------------------------------------------------------------------------------------------
def give_up_root() -> None:
    """Become `nobody` if the server is root, which has no limit on processes."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        with contextlib.suppress(Missing):
            call("prctl", SET_DUMPABLE, 1, 0, 0, 0)


def enter_namespaces() -> None:
    """Enter new namespaces as their root. Raises `Missing`."""
    user, group = os.geteuid(), os.getegid()
    call("unshare", 0x10000000)
    for path, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        try:
            with open(f"/proc/self/{path}", "w") as file:
                file.write(text)
        except OSError as error:
            raise Missing(f"/proc/self/{path}: {error.strerror}") from None
    call("unshare", NAMESPACES)
    for path in ("/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/shmmni", "/proc/sys/kernel/msgmni"):
        with contextlib.suppress(OSError), open(path, "w") as file:
            file.write("0")


def enter_empty_root() -> None:
    """Replace the root directory by an empty one in memory. Raises `Missing`."""
    call("unshare", 0x00020000)
    call("mount", b"none", b"/", None, 0x4000 | 0x40000, None)  # private: no mount is seen outside, and none comes in
    call("mount", b"none", b"/tmp", b"tmpfs", 2 | 4 | 8, f"size={DIRECTORY_BYTES},nr_inodes=64,mode=700".encode())
    os.chdir("/tmp")
    call("pivot_root", b".", b".")
    call("umount2", b".", DETACH)
    os.chdir("/")


def drop_capabilities() -> None:
    """Give up all capabilities for good. Raises `Missing`."""
    call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(64):
        with contextlib.suppress(Missing):  # beyond the last one
            call("prctl", DROP_BOUNDING, capability, 0, 0, 0)
    call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))


def filter_system_calls() -> None:
    """Refuse all but `SYSTEM_CALLS` with EPERM. Raises `Missing`."""
    if platform.machine() not in SYSTEM_CALLS:
        raise Missing(f"no list of system calls for {platform.machine()}")
    architecture, numbers = SYSTEM_CALLS[platform.machine()]
    allowed = [int(number) for number in numbers.split()]
    load, equal, end, kill, allow, refuse = 0x20, 0x15, 0x06, 0x80000000, 0x7FFF0000, 0x00050001
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (end, 0, 0, kill), (load, 0, 0, 0)]
    for i, number in enumerate(allowed):
        program.append((equal, len(allowed) - i, 0, number))
    program += [(end, 0, 0, refuse), (end, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", SET_SECCOMP, 2, header, 0, 0)


def set_limits(cpu_seconds: int, memory_bytes: int) -> None:
    """Set the limits of one job."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    # SIGXCPU, which a program can ignore, then SIGKILL
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_OPEN_FILES, MAX_OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


# -- one job -------------------------------------------------------------------------------------------------------
def literal(value: object, depth: int = 0) -> str:
    """Return a plain value as a Python literal. Raises `TypeError` for others.

    Values of subclasses are read by the methods of the built-in types.
    """
    if depth > 20:
        raise TypeError("nested too deep")
    if value is None or type(value) is bool:
        return str(value)
    for kind in (int, str, bytes):
        if isinstance(value, kind):
            return kind.__repr__(value)
    if isinstance(value, float):
        text = float.__repr__(value)
        if text == "nan":
            raise TypeError("not a number")
        return text.replace("inf", "1e999")
    if isinstance(value, dict):
        items = dict.items(value)
        return "{" + ", ".join(f"{literal(k, depth + 1)}: {literal(v, depth + 1)}" for k, v in items) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{literal(v, depth + 1)}, " for v in tuple.__iter__(value)) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(literal(v, depth + 1) for v in list.__iter__(value)) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(literal(v, depth + 1) for v in value)) + "}" if value else "set()"
    raise TypeError("no plain value")


def run_job(program: str, function: str, inputs: list[str], say: Callable[[list[str] | None], None]) -> None:
    """Execute a program, call its function on each input, and report the results."""
    import ast

    names: dict[str, Any] = {"__name__": "solution"}
    try:
        exec(compile(program, "solution.py", "exec"), names)
    except Exception as error:
        say(["raised", type(error).__name__])
        say(None)
        return
    for text in inputs:
        try:
            say(["returned", literal(names[function](*ast.literal_eval(text)))])
        except TypeError as error:
            plain = str(error) in ("no plain value", "not a number", "nested too deep")
            say(["raised", "NoPlainValue" if plain else "TypeError"])
        except Exception as error:
            say(["raised", type(error).__name__])
    say(None)


def be_job(job: dict[str, Any], pipe: int, nonce: str, directory: str | None, filtered: bool) -> None:
    """Run a job in this process, a fork, and end it.

    It runs in an empty root directory, or in `directory` if that is given.
    """
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.dup2(pipe, 3)
        os.closerange(4, 4096)
        os.setsid()
        if directory is None:
            enter_empty_root()
            drop_capabilities()
        else:
            os.chdir(directory)
        sys.path.clear()
        sys.argv.clear()
        os.environ.clear()
        set_limits(job["cpu_seconds"], job["memory_bytes"])
        if filtered:
            filter_system_calls()

        def say(value: list[str] | None) -> None:
            line = f"{nonce} {json.dumps(value)}\n".encode()
            while line:
                line = line[os.write(3, line) :]

        run_job(job["program"], job["function"], job["inputs"], say)
    except BaseException:
        os._exit(1)
    os._exit(0)


def supervise(job: dict[str, Any], isolated: bool, filtered: bool) -> dict[str, object]:
    """Fork, collect the results of a job within its limits, and kill the rest.

    `status` is done, exited, timeout or output (too much of it).
    """
    directory = None if isolated else tempfile.mkdtemp()
    reader, writer = os.pipe()
    nonce = secrets.token_hex(16)
    deadline, output, status = time.monotonic() + job["wall_seconds"], bytearray(), "exited"
    child = os.fork()
    if child == 0:
        be_job(job, writer, nonce, directory, filtered)
    os.close(writer)
    while True:
        if not select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            status = "timeout"
            break
        chunk = os.read(reader, 1 << 16)
        output += chunk
        if not chunk:
            break
        if output.endswith(f"{nonce} null\n".encode()):
            status = "done"
            break
        if len(output) > job["output_bytes"]:
            status = "output"
            break
    os.close(reader)
    status = end_job(child, status, job["cpu_seconds"])
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
    return {"status": status, "results": parse_results(bytes(output), nonce)}


def end_job(child: int, status: str, cpu_seconds: int) -> str:
    """Kill the processes of a job and wait for them.

    Returns `timeout` if the limit of CPU time ended the job, otherwise `status`.
    """
    with contextlib.suppress(ProcessLookupError):
        if os.getpid() == 1:  # of the PID namespace: all other processes in it
            os.kill(-1, signal.SIGKILL)
        else:
            os.kill(child, signal.SIGKILL)
            os.killpg(child, signal.SIGKILL)
    killed_for_time = False
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, code, used = os.wait4(-1, 0)
            if ended == child and status == "exited" and os.WIFSIGNALED(code):
                used_seconds = used.ru_utime + used.ru_stime
                killed_for_time = os.WTERMSIG(code) == signal.SIGXCPU or used_seconds >= cpu_seconds
    return "timeout" if killed_for_time else status


def parse_results(output: bytes, nonce: str) -> list[list[str]]:
    """Return the pairs in the lines that begin with the nonce."""
    results = []
    for line in output.split(b"\n"):
        if line.startswith(nonce.encode()):
            with contextlib.suppress(ValueError, RecursionError):
                match json.loads(line[len(nonce) + 1 :].decode("ascii")):
                    case [str(kind), str(value)]:
                        results.append([kind, value])
    return results


# -- main loop -----------------------------------------------------------------------------------------------------
def probe(isolated: bool) -> list[str]:
    """Return which parts of a job's sandbox the kernel refuses, tested in a fork."""
    parts: list[tuple[str, Callable[[], None]]] = [("system call filter", filter_system_calls)]
    if isolated:
        parts = [("private root directory", enter_empty_root), ("no capabilities", drop_capabilities), *parts]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for name, part in parts:
            try:
                part()
            except Exception as error:
                os.write(writer, f"{name} ({error})\n".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        refused = file.read().splitlines()
    os.waitpid(child, 0)
    return refused


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    give_up_root()
    refused = []
    try:
        enter_namespaces()
    except Missing as error:
        refused.append(f"user and network namespaces ({error})")
    isolated = not refused
    child = os.fork() if isolated else 0
    if child:  # outside the PID namespace; its first process ends with this one
        os.waitpid(child, 0)
        os._exit(0)
    if isolated:
        call("prctl", SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    refused += probe(isolated)
    filtered = not any(part.startswith("system call filter") for part in refused)
    isolated = isolated and not any(part.startswith(("private root", "no capabilities")) for part in refused)
    gc.collect()
    gc.freeze()
    lines, replies = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    for line in lines:
        request = json.loads(line)
        job = request["args"]
        value = refused if request["job"] == "warm" else supervise(job, isolated, filtered)
        replies.write(json.dumps({"value": value}) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
