"""The worker program that runs untrusted Python functions in a sandbox.

The pool starts it as a file with an empty environment, so it imports nothing of this project. It imports the modules of
`MODULES`, gives up root and enters new user, network, PID, mount, IPC and UTS namespaces. Then it becomes two
processes:

- The supervisor exchanges one JSON object per line with the pool, on private pipes, and enforces the limits of a job.
- The template, the first process of the PID namespace, forks each job. It never reads a job or a result, so that the
  memory of a job contains nothing of another one.

A job reads its program and its inputs itself; it receives no expected values. It keeps one pipe, for its results, and
has

- an empty root directory of its own, in memory and at most `DIRECTORY_BYTES` large;
- no capabilities, limits on CPU time, memory, file size, open files and processes;
- a seccomp filter that allows only the system calls of `SYSTEM_CALLS`: no socket, signal, process or `exec`. Without a
  root directory of its own, a job has no system call that takes a path.

After its wall-clock limit, when it ends, or when a process of the worker ends, every process of the job is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import platform
import select
import signal
import struct
import sys
import time
import types
from collections.abc import Callable
from typing import Any, NamedTuple

with contextlib.suppress(ImportError):  # Windows, where this program does not run
    import resource

MODULES = (
    "_strptime abc array bisect calendar cmath collections.abc copy dataclasses datetime decimal difflib enum "
    "fractions functools graphlib hashlib heapq itertools json math numbers operator pprint queue random re statistics "
    "string textwrap tokenize traceback typing unicodedata encodings.ascii encodings.latin_1 encodings.unicode_escape"
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
        "0 1 3 5 8 9 10 11 12 13 14 15 17 24 25 28 35 39 60 79 96 102 104 107 108 110 131 186 201 202 219 228 229 230 "
        "231 318 334",
        "87 217 257 262 263 332",
    ),
    "aarch64": (
        0xC00000B7,
        "63 64 57 80 62 222 226 215 214 134 135 139 67 124 216 233 101 172 93 17 169 174 176 175 177 173 132 178 98 "
        "128 113 114 115 94 278 293",
        "35 61 56 79 291",
    ),
}
"""Audit number of an architecture, the numbers of its calls without a path and of those for files.

The former are read, write, close, fstat, lseek, mmap, mprotect, munmap, brk, rt_sigaction, rt_sigprocmask,
rt_sigreturn, pread64, sched_yield, mremap, madvise, nanosleep, getpid, exit, getcwd, gettimeofday, get(e)uid,
get(e)gid, getppid, sigaltstack, gettid, time, futex, restart_syscall, clock_gettime, clock_getres, clock_nanosleep,
exit_group, getrandom and rseq; the latter are unlink(at), getdents64, openat, newfstatat and statx. Path arguments are
pointers, which a filter cannot read."""
NO_NEW_PRIVS, SET_SECCOMP, SET_DUMPABLE, SET_DEATH_SIGNAL, DROP_BOUNDING = 38, 22, 4, 1, 24
STATUS = struct.Struct("id")
"""Signal that ended a job, and its CPU seconds."""
FILTER = "system call filter"
"""Name of this part of the sandbox."""
DETACH = 2
"""Flag of umount2."""
libc = ctypes.CDLL(None, use_errno=True)


class Pipes(NamedTuple):
    """Ends of the pipes between supervisor and template."""

    jobs: int
    control: int
    results: int
    statuses: int


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
    """Become `nobody` if the server is root, which has no limit on processes, and if there is another user."""
    with contextlib.suppress(PermissionError):  # root of a user namespace without other users, or without capabilities
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


def filter_system_calls(files: bool = True) -> None:
    """Refuse all but `SYSTEM_CALLS` with EPERM, and without `files` those for files too. Raises `Missing`."""
    if platform.machine() not in SYSTEM_CALLS:
        raise Missing(f"no list of system calls for {platform.machine()}")
    architecture, numbers, file_numbers = SYSTEM_CALLS[platform.machine()]
    allowed = [int(number) for number in (numbers + " " + file_numbers if files else numbers).split()]
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
    for kind in (int, float, str, bytes):
        if isinstance(value, kind):
            return kind.__repr__(value)
    if isinstance(value, dict):
        items = dict.items(value)
        return "{" + ", ".join(f"{literal(k, depth + 1)}: {literal(v, depth + 1)}" for k, v in items) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{literal(v, depth + 1)}, " for v in tuple.__iter__(value)) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(literal(v, depth + 1) for v in list.__iter__(value)) + "]"
    if isinstance(value, set | frozenset):
        text = "{" + ", ".join(sorted(literal(v, depth + 1) for v in value)) + "}" if value else ""
        return f"frozenset({text})" if isinstance(value, frozenset) else text or "set()"
    raise TypeError("no plain value")


def run_job(job: dict[str, Any], say: Callable[[list[str] | None], None]) -> None:
    """Execute the texts of a program as one module, call its function on each input, and report the results."""
    arguments: list[dict[str, Any]] = [{"inf": math.inf, "nan": math.nan} for _ in job["inputs"]]
    for text, scope in zip(job["inputs"], arguments, strict=True):
        exec(f"given = {text}", scope)
    module = sys.modules["solution"] = types.ModuleType("solution")
    try:
        for text in job["program"]:
            exec(compile(text, "solution.py", "exec", dont_inherit=True), vars(module))
    except Exception as error:
        say(["raised", type(error).__name__])
        say(None)
        return
    for scope in arguments:
        try:
            say(["returned", literal(vars(module)[job["function"]](*scope["given"]))])
        except TypeError as error:
            plain = str(error) in ("no plain value", "nested too deep")
            say(["raised", "NoPlainValue" if plain else "TypeError"])
        except Exception as error:
            say(["raised", type(error).__name__])
    say(None)


def read_job(template: int, pipes: Pipes) -> dict[str, Any]:
    """Read the job of this process, a fork of the template."""
    text = bytearray()
    while os.getppid() == template and not text.endswith(b"\n"):
        text += os.read(pipes.jobs, 1 << 16)
    job: dict[str, Any] = json.loads(text)["args"]
    return job


def be_job(template: int, pipes: Pipes, isolated: bool, filtered: bool) -> None:
    """Read a job, run it in this process, a fork of the template, and end it.

    It runs in an empty root directory if the kernel allows that, otherwise without any call for files.
    """
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        call("prctl", SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        job = read_job(template, pipes)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(pipes.results, 3)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.closerange(4, 4096)
        os.setsid()
        os.chdir("/")
        if isolated:
            enter_empty_root()
        drop_capabilities()
        sys.path.clear()
        sys.argv.clear()
        os.environ.clear()
        set_limits(job["cpu_seconds"], job["memory_bytes"])
        if not isolated:
            filter_system_calls(files=False)
        elif filtered:
            filter_system_calls()

        def say(value: list[str] | None) -> None:
            line = f"{json.dumps(value)}\n".encode()
            while line:
                line = line[os.write(3, line) :]

        run_job(job, say)
    except BaseException:
        os._exit(1)
    os._exit(0)


# -- template ------------------------------------------------------------------------------------------------------
def fork_jobs(pipes: Pipes, isolated: bool, filtered: bool) -> None:
    """Fork a job for each first byte on `pipes.control` and kill it after the second one, or when it ends.

    Writes the signal that ended a job and its CPU seconds to `pipes.statuses`.
    """
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup)
    template = os.getpid()
    while os.read(pipes.control, 1):
        child = os.fork()
        if child == 0:
            be_job(template, pipes, isolated, filtered)
        select.select([pipes.control, ended], [], [])
        os.write(pipes.statuses, STATUS.pack(*end_job(child)))
        os.read(ended, 1 << 16)
        os.read(pipes.control, 1)


def end_job(child: int) -> tuple[int, float]:
    """Kill the processes of a job, wait for them, and return the signal that ended it and its CPU seconds."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpid() == 1:  # of the PID namespace: all other processes in it
            os.kill(-1, signal.SIGKILL)
        else:
            os.kill(child, signal.SIGKILL)
            os.killpg(child, signal.SIGKILL)
    number, seconds = 0, 0.0
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, code, used = os.wait4(-1, 0)
            if ended == child:
                number, seconds = os.WTERMSIG(code) if os.WIFSIGNALED(code) else 0, used.ru_utime + used.ru_stime
    return number, seconds


# -- supervisor ----------------------------------------------------------------------------------------------------
def supervise(line: bytes, pipes: Pipes) -> dict[str, object]:
    """Let the template fork a job, collect its results within its limits, and have it killed.

    `status` is done, exited, timeout or output (too much of it). Ends this process if the pool closes its pipe.
    """
    job, output, status = json.loads(line)["args"], bytearray(), ""
    deadline = time.monotonic() + job["wall_seconds"]
    os.write(pipes.control, b"+")
    while line:
        line = line[os.write(pipes.jobs, line) :]
    while not status:
        ready = select.select([pipes.results, pipes.statuses, 0], [], [], max(0.0, deadline - time.monotonic()))[0]
        if 0 in ready:
            os._exit(0)
        if pipes.results in ready:
            output += os.read(pipes.results, 1 << 16)
            if output.endswith(b"null\n"):
                status = "done"
            elif len(output) > job["output_bytes"]:
                status = "output"
        elif not ready:
            status = "timeout"
        else:
            status = "exited"
    os.write(pipes.control, b"-")
    number, seconds = STATUS.unpack(os.read(pipes.statuses, STATUS.size))
    with contextlib.suppress(BlockingIOError):  # what is left in the pipe must not reach the next job
        while True:
            output += os.read(pipes.results, 1 << 16)
    if status == "exited" and number and (number == signal.SIGXCPU or seconds >= job["cpu_seconds"]):
        status = "timeout"
    return {"status": status, "results": parse_results(bytes(output))}


def parse_results(output: bytes) -> list[list[str]]:
    """Return the lines that are a pair of texts."""
    results = []
    for line in output.split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            match json.loads(line.decode("ascii")):
                case [str(kind), str(value)]:
                    results.append([kind, value])
    return results


# -- main loop -----------------------------------------------------------------------------------------------------
def probe(isolated: bool) -> list[str]:
    """Return which parts of a job's sandbox the kernel refuses, tested in a fork."""
    parts: list[tuple[str, Callable[[], None]]] = [(FILTER, filter_system_calls)]
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
    jobs, control, results, statuses = (os.pipe() for _ in Pipes._fields)
    pipes = Pipes(jobs[1], control[1], results[0], statuses[0])
    template_pipes = Pipes(jobs[0], control[0], results[1], statuses[1])
    gc.collect()
    gc.freeze()
    is_template = os.fork() == 0
    for pipe in (0, 1, *pipes) if is_template else template_pipes:
        os.close(pipe)
    if is_template:
        call("prctl", SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        refused += probe(isolated=not refused)
        os.write(template_pipes.statuses, f"{json.dumps(refused)}\n".encode())
        filtered = not any(part.startswith(FILTER) for part in refused)
        isolated = all(part.startswith(FILTER) for part in refused)
        fork_jobs(template_pipes, isolated, filtered)
        os._exit(0)
    os.set_blocking(pipes.results, False)
    with os.fdopen(0, "rb") as lines, os.fdopen(1, "w") as replies, os.fdopen(pipes.statuses, "rb", 0) as first:
        refused = json.loads(first.readline())
        for line in lines:
            value = refused if json.loads(line)["job"] == "warm" else supervise(line, pipes)
            replies.write(json.dumps({"value": value}) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
