"""The standby process of a node: it has imported the modules of the ranks, and forks when a rank must start again.

    python standby.py FOLDER SCRIPT [LEFT_OUT ...]

The agent copies this file to FOLDER, a directory of this node that other users cannot enter. The rank script of the
node's first rank, the process SCRIPT, starts it. It imports what FOLDER/modules lists and then waits at a socket. It
has no threads and no devices: a module that starts a thread which does not survive a fork, or that opens a device or a
connection, is left out. The standby then starts again without this module.

To start a rank again, `standby_ask.py` connects. The new rank is a fork of the standby. It gets the working folder, the
variables, the limits, the CPUs and the standard streams of the process that asks. If the fork would differ from a fresh
process (another control group or namespace), the standby refuses.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

MAX_MB = 400
"""No more modules are imported when the process has this much memory of its own."""
_POLL_S = 0.5
_ANSWER_S = 20.0
_STORE_S = 1.0
_MAX_LEFT_OUT = 8
_NAMESPACES = ("mnt", "net", "ipc", "pid", "user")
_AT_START = ("LD_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "MALLOC_")
"""Variables that the interpreter or a library reads when it starts. A fork cannot change them."""
_PLACES = ("OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_FIRST = ("RANK", "WINDLASS_RANK", "WINDLASS_PLACE", "NCCL_RAS_ADDR")
"""Variables by which the agent identifies a rank from outside. They come first in the visible environment."""
_PR_SET_PDEATHSIG = 1


# The standby


def wait(folder: str, script: int, left_out: list[str]) -> None:
    """Import the modules that a rank has recorded, then fork for each request until the rank script has ended."""
    started = dict(os.environ)
    while not (text := _text(os.path.join(folder, "modules"))).endswith("]"):
        if os.getppid() != script:
            return
        time.sleep(_POLL_S)
    begin, names = time.monotonic(), json.loads(text)
    why = _refusal(started)
    if not why:
        culprit = _preload([name for name in names if not name.startswith(tuple(left_out))], script)
        if culprit and len(left_out) < _MAX_LEFT_OUT:
            os.execv(sys.executable, [sys.executable, *_options(), *sys.argv[:3], *left_out, culprit])
        why = "%s and %d others start threads or open devices" % (culprit, len(left_out)) if culprit else ""
    about = {"seconds": round(time.monotonic() - begin, 1), "mb": memory_mb(), "modules": len(sys.modules)}
    file = os.open(os.path.join(folder, "standby.json"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(file, json.dumps(dict(about, left_out=left_out, off=why)).encode())
    os.close(file)
    if why:
        return
    import gc

    gc.collect()
    gc.freeze()
    os.chdir(folder)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("standby.new")
        listener.listen(64)
        os.rename("standby.new", "standby.socket")
        _serve(listener, script, started)


def _options() -> list[str]:
    """Return the options of this interpreter."""
    words = list(getattr(sys, "orig_argv", ()))[1:]
    return words[: words.index(sys.argv[0])] if sys.argv[0] in words else []


def _refusal(environ: dict[str, str]) -> str:
    """Return why this node gets no standby, or an empty string."""
    if not hasattr(socket, "recv_fds"):
        return "this Python is older than 3.9"
    placed = [name for name in _PLACES if environ.get(name)]
    if placed and environ.get("LOCAL_WORLD_SIZE") != "1":
        return "%s places threads when a library is imported, and each rank has other cores" % placed[0]
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next(int(line.split()[1]) >> 10 for line in file if line.startswith("MemAvailable"))
    for group in _groups(_text("/proc/self/cgroup")):
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int(_text(os.path.join(group, "memory." + name))) for name in ("max", "current"))
            free = min(free, (limit - used) >> 20)
    return "%d MB of memory are free, it needs %d" % (free, 2 * MAX_MB) if free < 2 * MAX_MB else ""


def _preload(names: list[str], script: int) -> str:
    """Import the modules. Returns the name of one that must be left out, or an empty string."""
    files = len(os.listdir("/proc/self/fd"))
    for name in names:
        if name in sys.modules:
            continue
        begin = time.monotonic()
        with contextlib.suppress(Exception):  # some modules exist only after their package has run
            importlib.import_module(name)
        spent = time.monotonic() - begin
        now = len(os.listdir("/proc/self/fd"))
        if not _alone() or (now > files and not _plain_files()):
            return name
        files = now
        if spent > 0.01:
            time.sleep(spent)  # the ranks train on these cores
        if memory_mb() > MAX_MB or os.getppid() != script:
            break
    return ""


def _alone() -> bool:
    """Return whether this process has one thread, at least after a fork: some libraries end their threads for it."""
    if len(os.listdir("/proc/self/task")) == 1:
        return True
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task")) == 1


def _plain_files() -> bool:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink("/proc/self/fd/" + name)
            harmless = target.startswith(("/dev/null", "/dev/shm/", "/dev/urandom", "/dev/pts/", "/dev/tty"))
            if target.startswith("socket:") or (target.startswith("/dev/") and not harmless):
                return False
    return True


def memory_mb() -> int:
    """Return the memory of this process that it shares with no file."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("RssAnon"))


def _serve(listener: socket.socket, script: int, started: dict[str, str]) -> None:
    """Fork for each connection, report each end, and kill a rank whose asking process is gone."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    ranks: dict[int, socket.socket] = {}
    events = select.poll()
    events.register(listener, select.POLLIN)
    events.register(wake, select.POLLIN)
    while ranks or os.getppid() == script:
        ready = dict(events.poll(_POLL_S * 1000))
        if wake in ready:
            os.read(wake, 4096)
        for pid, asker in list(ranks.items()):
            if asker.fileno() in ready:  # only its end counts: the new rank reads what it sends
                events.unregister(asker)
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                with contextlib.suppress(OSError):
                    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    asker.sendall(b"code %d\n" % code)
                with contextlib.suppress(KeyError):
                    events.unregister(asker)
                ranks.pop(pid).close()
        if listener.fileno() in ready:
            asker, _ = listener.accept()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (listener, *ranks.values()):
                    other.close()
                os.close(wake)
                os.close(waker)
                _become(asker, started)
            ranks[pid] = asker
            events.register(asker, select.POLLRDHUP)


# The new rank


def _become(asker: socket.socket, started: dict[str, str]) -> NoReturn:
    """Take over what the asking process has, then run its command in this process."""
    os.setpgid(0, 0)
    asker.settimeout(_ANSWER_S)
    data, files, _, _ = socket.recv_fds(asker, 1 << 16, 3)
    while not data.endswith(b"\n"):
        data += asker.recv(1 << 16)
    told = json.loads(data)
    why = _difference(told, started)
    if why:
        asker.sendall(b"no " + why.encode() + b"\n")
        os._exit(0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(told["cwd"])
    os.umask(told["umask"])
    os.sched_setaffinity(0, told["cpus"])
    for name, limits in told["limits"].items():
        resource.setrlimit(getattr(resource, name), limits)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        ignored = number in told["ignored"]
        if ignored != (signal.getsignal(number) == signal.SIG_IGN):
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(told["environ"])
    _show_environ(told["environ"])
    if "numpy" in sys.modules:  # the other random generators are seeded again by Python, or have a fixed seed
        sys.modules["numpy"].random.seed()
    _record_steps(told["environ"].get("WINDLASS_STEPS"))
    asker.sendall(b"pid %d\n" % os.getpid())
    asker.close()
    if "torch.distributed" in sys.modules and told["environ"].get("RANK") != "0":
        _wait_for_store(told["environ"])
    _run(told["command"])


def _record_steps(folder: str | None) -> None:
    """Install the sampler's start-up hook, which a fresh interpreter would have found, if the node has a sampler."""
    hook = os.path.join(os.path.dirname(folder or ""), "python")
    if not folder or not os.path.exists(os.path.join(hook, "sitecustomize.py")):
        return
    sys.path.insert(1, hook)
    with contextlib.suppress(Exception):  # it costs the record of steps, never the rank
        spec: Any = importlib.util.spec_from_file_location("windlass_hook", os.path.join(hook, "sitecustomize.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module._install()
        for name, watch in module._modules().items():
            if name in sys.modules:
                watch(sys.modules[name])
    sys.path.remove(hook)


def _wait_for_store(environ: dict[str, str]) -> None:
    """Wait a moment until rank 0 listens: torch tries again only a second after a refused connection."""
    give_up = time.monotonic() + _STORE_S
    with contextlib.suppress(KeyError, ValueError):
        address = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        while time.monotonic() < give_up:
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=_STORE_S):
                return
            time.sleep(0.01)


def _difference(told: dict[str, Any], started: dict[str, str]) -> str:
    """Return why a fork would not be what a fresh process of the asking one is, or an empty string."""
    here = surroundings()
    if told["namespaces"] != here["namespaces"]:
        return "the rank has other namespaces"
    if told["groups"] != here["groups"] and not _same_limits(told["groups"], here["groups"]):
        return "the rank has another control group (%s)" % told["groups"].strip().rpartition(":")[2]
    names = {name for name in (*told["environ"], *started) if name.startswith(_AT_START)}
    other = sorted(name for name in names if told["environ"].get(name) != started.get(name))
    if other:
        return "%s of the rank differs" % other[0]
    if not os.path.isfile(told["command"][0]) and told["command"][0] != "-m":
        return "%s is no file" % told["command"][0]
    return ""


def surroundings() -> dict[str, Any]:
    return {
        "groups": _text("/proc/self/cgroup"),
        "namespaces": [os.readlink("/proc/self/ns/" + name) for name in _NAMESPACES],
    }


def _groups(text: str) -> list[str]:
    """Return the folders of a process's unified control group and of all groups above it."""
    path = next((line[3:] for line in text.splitlines() if line[:3] == "0::"), "/")
    parts = path.strip("/").split("/")
    return ["/sys/fs/cgroup/" + "/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _same_limits(one: str, two: str) -> bool:
    """Return whether two control groups of the unified hierarchy have one parent and the same limits."""
    first, second = _groups(one), _groups(two)
    if ":" in one.strip()[3:] or first[1:] != second[1:]:
        return False
    files = ("memory.max", "memory.high", "cpuset.cpus.effective", "cpu.max", "pids.max")
    return all(_text(os.path.join(first[0], name)) == _text(os.path.join(second[0], name)) for name in files)


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _show_environ(environ: dict[str, str]) -> None:
    """Write the new variables where /proc/PID/environ shows them, as far as they fit."""
    import ctypes

    fields = _text("/proc/self/stat").rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    first = [name for name in _FIRST if name in environ]
    names = [*first, *(name for name in environ if name not in first)]
    shown = b"".join(os.fsencode("%s=%s" % (name, environ[name])) + b"\0" for name in names)[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _run(command: list[str]) -> NoReturn:
    """Run a script or module as the interpreter would, and end the process as it would."""
    import runpy
    from importlib.machinery import SourceFileLoader
    from types import ModuleType

    code: Any = 0
    main = sys.modules["__main__"] = ModuleType("__main__")
    try:
        if command[0] == "-m":
            sys.path[0] = os.getcwd()
            sys.argv = command[1:]
            runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]
        else:
            sys.path[0] = os.path.dirname(os.path.realpath(command[0]))
            sys.argv = command
            vars(main).update(__file__=command[0], __cached__=None, __builtins__=__builtins__)
            main.__loader__ = SourceFileLoader("__main__", command[0])
            with open(command[0], "rb") as file:
                program = compile(file.read(), command[0], "exec", dont_inherit=True)
            exec(program, vars(main))
    except SystemExit as error:
        code = error.code
        if code is not None and not isinstance(code, int):
            sys.stderr.write("%s\n" % code)
            code = 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in {__file__, "<frozen runpy>"}:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    _leave(int(code or 0) & 0xFF)


def _leave(code: int) -> NoReturn:
    """End as the interpreter does, except that objects which still exist are not destroyed."""
    import atexit
    import threading

    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    wait(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
