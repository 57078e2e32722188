"""The start-up hook of the ranks. Python imports it because its directory is the first of PYTHONPATH.

The hook removes its directory from `sys.path` at once, and then runs the `sitecustomize` that would have run without
it. It installs a finder that detects when the program imports torch. The hook itself never imports torch. It then
registers hooks for torch's optimizer steps, and times the wait for a DataLoader's next batch. An error in this file
costs the record, never the program. On the node this file and the modules `windlass_*` are in one directory.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # an old Python may also read this file: annotations are strings and cost nothing
    from typing import Any


_recorder: "Any" = None
_torch: "Any" = None
_profiling: "Any" = None
_on_request: "Any" = None
_stepped: "list[Any]" = []
"""A weak reference to the optimizer that took the newest step."""


def _modules() -> "Any":
    """Return the functions that watch torch, by the module that must have been imported."""
    return {
        "torch.optim.optimizer": _watch_optimizers,
        "torch.utils.data.dataloader": _watch_loaders,
        "torch.nn.parallel.distributed": _watch_ddp,
        "torch.distributed.distributed_c10d": _watch_groups,
        "torch.serialization": _watch_save("save", "f", 1),
        "torch.distributed.checkpoint.state_dict_saver": _watch_save("save", "", 0),
        "safetensors.torch": _watch_save("save_file", "filename", 1),
    }


def _install() -> "Any":
    global _recorder, _profiling, _on_request
    import atexit
    import os

    environ = os.environ
    if environ.get("WINDLASS_STEPS") is None:
        return
    recorder = __import__("windlass_recorder")  # in the directory of this file on the node
    path = recorder.rank_file()
    if path is None:
        return
    _recorder = recorder.Recorder(path)
    setattr(recorder, "shared", _recorder)  # noqa: B010
    if environ.get("WINDLASS_PROFILE"):
        _profiling = __import__("windlass_profiler")
    _on_request = __import__("windlass_on_request")
    _on_request.stacks_on_request(environ.get("WINDLASS_HEARTBEAT"))
    atexit.register(_settle_gloo, __import__("windlass_gloo_exit"))  # at exit, this directory is not in sys.path
    _say_python(path)
    sys.meta_path.insert(0, _AfterImport(_modules()))
    atexit.register(_recorder.close)
    os.register_at_fork(after_in_child=_recorder.forget)


def _settle_gloo(gloo_exit: "Any") -> "Any":
    if "torch.distributed.distributed_c10d" in sys.modules:
        gloo_exit.settle()


def _say_python(path: "Any") -> "Any":
    """Record from the first Python of the rank that the hook works, before there is a step."""
    import os
    import time

    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    version = "%d.%d.%d" % sys.version_info[:3]
    line = '{"python":{"version":"%s","pid":%d,"at":%.3f}}\n' % (version, os.getpid(), time.time())
    os.write(file, line.encode())
    os.close(file)


class _AfterImport:
    """A finder that finds nothing itself: it delegates to the others and runs a function after an import."""

    def __init__(self, wanted: "Any") -> "None":
        self._wanted = wanted

    def find_spec(self, name: "Any", path: "Any" = None, target: "Any" = None) -> "Any":
        call = self._wanted.pop(name, None)
        if call is None:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    _call_after(spec.loader, call)
                return spec
        return None


def _call_after(loader: "Any", call: "Any") -> "Any":
    execute = loader.exec_module

    def exec_module(module: "Any") -> "Any":
        execute(module)
        try:
            call(module)
        except Exception as error:
            _recorder.note("%s: %s" % (type(error).__name__, str(error)[:200]))

    loader.exec_module = exec_module


def _watch_optimizers(module: "Any") -> "Any":
    global _torch
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        _recorder.note("this torch does not report optimizer steps:  call windlass.step() in the training loop")
        return
    _torch = sys.modules["torch"]
    register(_after_step)
    _profile()
    _recorder.extra.append(_every(30.0, _memory_line))
    _recorder.extra.append(_every(10.0, _nan_line))


def _after_step(optimizer: "Any", args: "Any", kwargs: "Any") -> "Any":
    if _torch.compiler.is_compiling():  # there is nothing to time, and the graph stays whole
        return
    if not _stepped or _stepped[0]() is not optimizer:
        from weakref import ref

        _stepped[:] = [ref(optimizer)]
    _recorder.step(id(optimizer))


def _profile() -> "Any":
    """Start torch's profiler if it was requested for this rank."""
    import atexit

    profiler = _profiling.from_environment(_torch) if _profiling is not None else None
    if profiler is not None:
        _recorder.after_step = profiler.after_step
        atexit.register(profiler.finish)


def _watch_loaders(module: "Any") -> "Any":
    """Time the wait for the next batch, and for the workers at the start of an epoch.

    Only the program's first thread is timed, because no step waits for a thread that prefetches.
    """
    from _thread import get_ident
    from functools import wraps
    from time import perf_counter

    def timed(method: "Any") -> "Any":
        @wraps(method)
        def wrapper(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
            if inside or get_ident() != main:
                return method(self, *args, **kwargs)
            inside.append(1)
            begin = perf_counter()
            try:
                return method(self, *args, **kwargs)
            finally:
                _recorder.waited(perf_counter() - begin)
                inside.pop()

        return wrapper

    main = get_ident()
    inside: "list[int]" = []
    module._BaseDataLoaderIter.__next__ = timed(module._BaseDataLoaderIter.__next__)
    module.DataLoader.__iter__ = timed(module.DataLoader.__iter__)


def _watch_ddp(module: "Any") -> "Any":
    from functools import wraps
    from weakref import ref

    made = module.DistributedDataParallel.__init__

    @wraps(made)
    def init(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        made(self, *args, **kwargs)
        if not wrapped:
            _recorder.extra.append(_every(5.0, lambda: _ddp_line(wrapped[0]())))
        wrapped[:] = [ref(self)]

    wrapped: "list[Any]" = []
    module.DistributedDataParallel.__init__ = init


def _watch_groups(module: "Any") -> "Any":
    """Provide the flight record of collectives on request, from the first process group on."""
    from functools import wraps

    init = module.init_process_group

    @wraps(init)
    def init_process_group(*args: "Any", **kwargs: "Any") -> "Any":
        from os import environ

        heartbeat, run_dir = environ.get("WINDLASS_HEARTBEAT"), environ.get("WINDLASS_RUN_DIR")
        if heartbeat and not asked:
            _on_request.switch_on(environ, str(sys.modules["torch"].__version__), run_dir)
        init(*args, **kwargs)
        if heartbeat and not asked:
            asked.append(1)
            _on_request.dump_on_request(heartbeat, run_dir, environ.get("RANK", "0"))

    asked: "list[int]" = []
    module.init_process_group = init_process_group


def _watch_save(name: "Any", parameter: "Any", position: "Any") -> "Any":
    """Time a function of a module that saves, and record the file that one of its parameters names.

    Saves in background threads do not count, because they delay no step.
    """

    def watch(module: "Any") -> "Any":
        from _thread import get_ident
        from functools import wraps
        from time import perf_counter

        save = getattr(module, name)
        main = get_ident()
        inside: "list[int]" = []

        @wraps(save)
        def timed(*args: "Any", **kwargs: "Any") -> "Any":
            if inside or get_ident() != main:
                return save(*args, **kwargs)
            inside.append(1)
            begin = perf_counter()
            try:
                _recorder.doing("save", file_of(args, kwargs))
                return save(*args, **kwargs)
            finally:
                _recorder.saved(perf_counter() - begin)
                inside.pop()

        setattr(module, name, timed)

    def file_of(args: "Any", kwargs: "Any") -> "Any":
        from os import path

        given = kwargs.get(parameter, args[position] if len(args) > position and parameter else None)
        given = getattr(given, "name", given)
        text = given.__fspath__() if hasattr(given, "__fspath__") else given
        return path.abspath(text)[:400] if isinstance(text, str) else ""

    return watch


def _every(seconds: "Any", ask: "Any") -> "Any":
    """Call `ask` at most every `seconds`. Repeat at once while it returns None. Stop after an error."""
    from time import monotonic

    due = [0.0]

    def line() -> "Any":
        if monotonic() < due[0]:
            return None
        try:
            said = ask()
        except Exception:
            due[0] = float("inf")
            return None
        if said is not None:
            due[0] = monotonic() + seconds
        return said

    return line


def _ddp_line(model: "Any") -> "Any":
    """Return DDP's measurements of its last sampled iteration (the first ten, then every hundredth)."""
    from time import time

    if model is None:
        return None
    said = model._get_ddp_logging_data()
    names = {
        "forward_us": "forward_compute_time",
        "backward_us": "backward_compute_time",
        "comm_us": "backward_comm_time",
        "overlap_us": "backward_compute_comm_overlap_time",
    }
    line: "dict[str, Any]" = {key: int(said[name]) // 1000 for key, name in names.items() if said.get(name)}
    if "comm_us" not in line:
        return None
    sizes = str(said.get("rebuilt_bucket_sizes") or said.get("bucket_sizes") or "")
    buckets = sum(int(size) for size in sizes.split(",") if size.strip().isdigit())
    line.update(at=round(time(), 3), iteration=int(said.get("iteration", 0)), bytes=buckets)
    line["backend"] = str(said.get("backend_name", ""))
    return {"ddp": line}


def _memory_line() -> "Any":
    """Return the figures of torch's allocator, if an accelerator is in use."""
    from time import time

    for name in ("cuda", "xpu"):
        device = getattr(_torch, name, None)
        if device is not None and device.is_initialized():
            said = device.memory_stats()
            return {
                "memory": {
                    "at": round(time(), 3),
                    "peak_bytes": int(said.get("reserved_bytes.all.peak", 0)),
                    "alloc_retries": int(said.get("num_alloc_retries", 0)),
                    "ooms": int(said.get("num_ooms", 0)),
                }
            }
    return None


def _nan_line() -> "Any":
    """Return a line if the smallest parameter with a gradient is NaN. A NaN loss makes all parameters NaN.

    Scaled gradients may be infinite in a healthy run, parameters never. Asks the device once in ten seconds, and only
    for the local part of a distributed tensor, which needs no other rank.
    """
    optimizer = _stepped[0]() if _stepped else None
    if optimizer is None or (_torch.cuda.is_initialized() and _torch.cuda.is_current_stream_capturing()):
        return {}
    with _torch.no_grad():
        known = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        known = [p.to_local() if hasattr(p, "to_local") else p for p in known]
        known = [p for p in known if p.numel() and p.is_floating_point() and p.device.type != "meta"]
        if not known or not bool(_torch.isnan(min(known, key=lambda p: p.numel())).any()):
            return {}
    return {"nan": {"step": _recorder.steps}}


def _run_next() -> "Any":
    """Run the next module of the same name in `sys.path`, as if Python had found it first."""
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours


def _main() -> "Any":
    folder = __file__.rpartition("/")[0]
    try:
        _install()
    except Exception as error:
        sys.stderr.write("windlass: the start-up hook does not work here: %s: %s\n" % (type(error).__name__, error))
    while folder in sys.path:
        sys.path.remove(folder)
    _run_next()


if __name__ == "sitecustomize":
    _main()
