"""Convert model, optimizer and per-rank values to one flat dictionary and back.

With flat names (`model/…`, `buffer/…`, `optim/…`, `rank/…`), two dictionaries can be compared before any byte is
loaded. A folder of another model is therefore refused by name and shape, and loading does not fail half way.

The module also saves the random number generators of one rank: Python, NumPy (if the script uses it), torch, and this
rank's device.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.errors import UsageError
from windlass.node.sys.text import listed

_WRAPPERS = ("module.", "_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
_SHOWN = 3
_ROUND = 1 << 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The content of a snapshot: the user's objects."""

    model: Any
    optimizers: tuple[Any, ...] = ()
    loader: Any = None
    also: Mapping[str, Any] | None = None

    @property
    def optimizer_is_empty(self) -> bool:
        """True while no optimizer has state: before its first step, or always (SGD without momentum)."""
        return not any(optimizer.state for optimizer in self.optimizers)


def tensors_of(parts: Parts, *, with_optimizer: bool) -> dict[str, Any]:
    """Map flat names to the (sharded) tensors and plain values of model and optimizer.

    The tensors are the live ones.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict

    buffers = {_plain(name) for name, _ in parts.model.named_buffers()}
    flat: dict[str, Any] = {}
    for name, value in get_model_state_dict(parts.model).items():
        flat[f"{'buffer' if _plain(name) in buffers else 'model'}/{name}"] = value
    if with_optimizer and parts.optimizers:
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        state = get_optimizer_state_dict(parts.model, parts.optimizers, options=options)
        flat |= {f"optim/{name}": value for name, value in state.items()}
    return flat


def rank_key(rank: int) -> str:
    """Return the name under which one rank's own values are stored."""
    return f"rank/{rank:06d}"


def pack(values: Mapping[str, Any]) -> Any:
    """Pack any values into a tensor of bytes, so that the rank's shard contains them without a separate file.

    The tensor is padded to a round size. Its length varies by a few bytes from save to save, and a plan is valid for
    one shape.
    """
    import torch

    content = bytearray(pickle.dumps(values, protocol=4))
    return torch.frombuffer(content.ljust(-(-len(content) // _ROUND) * _ROUND, b"\0"), dtype=torch.uint8)


def own_values(parts: Parts, rng: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that differ from rank to rank, or that are too small to shard."""
    groups = [
        [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        for optimizer in parts.optimizers
    ]
    return {
        "rng": dict(rng),
        "loader": None if parts.loader is None else parts.loader.state_dict(),
        "also": {name: thing.state_dict() for name, thing in (parts.also or {}).items()},
        "param_groups": groups if parts.optimizer_is_empty else None,
    }


def restore_values(parts: Parts, values: Mapping[str, Any]) -> None:
    """Restore loader, schedulers and the like. The caller restores the generators, at the last moment."""
    if parts.loader is not None and values["loader"] is not None:
        parts.loader.load_state_dict(values["loader"])
    for name, thing in (parts.also or {}).items():
        if name in values["also"]:
            thing.load_state_dict(values["also"][name])
    if values["param_groups"] is not None:
        here = [len(optimizer.param_groups) for optimizer in parts.optimizers]
        there = [len(groups) for groups in values["param_groups"]]
        if here != there:
            raise UsageError(
                f"the snapshot has optimizers with {there} parameter groups, this run has {here}",
                hint="create the same optimizers, or give this run another folder",
            )
        for optimizer, groups in zip(parts.optimizers, values["param_groups"], strict=True):
            for group, saved in zip(optimizer.param_groups, groups, strict=True):
                group.update(saved)


def load_tensors(parts: Parts, target: dict[str, Any], stored: Mapping[str, Any]) -> None:
    """Write the loaded `target` (made by `tensors_of`) back to model and optimizers.

    A parameter without optimizer state in the snapshot has none afterwards either, as in a run that never stopped.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict

    model = {name.partition("/")[2]: v for name, v in target.items() if name.startswith(("model/", "buffer/"))}
    set_model_state_dict(parts.model, model)
    optim = {name.removeprefix("optim/"): v for name, v in target.items() if name.startswith("optim/")}
    if not optim:
        return
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    set_optimizer_state_dict(parts.model, parts.optimizers, optim_state_dict=optim, options=options)
    named = {_plain(name): parameter for name, parameter in parts.model.named_parameters()}
    for name in stateless_parameters(target, stored):
        for optimizer in parts.optimizers:
            optimizer.state.pop(named.get(name), None)


def stateless_parameters(target: Mapping[str, Any], stored: Iterable[str]) -> set[str]:
    """Return the parameters without optimizer state in the snapshot for which the optimizer here created state."""
    have = {_parameter(name) for name in stored if name.startswith("optim/state.")}
    return {_parameter(name) for name in target if name.startswith("optim/state.")} - have


def loadable(target: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `target` that the snapshot contains."""
    return {name: value for name, value in target.items() if name in stored}


def compare(target: Mapping[str, Any], stored: Mapping[str, Any], where: Path) -> None:
    """Raise `UsageError` if the snapshot is of another model or optimizer. `stored` is torch's metadata."""
    unused = stateless_parameters(target, stored)
    only_here = [n for n in target if n not in stored and _counts(n) and _parameter(n) not in unused]
    only_there = [n for n in stored if n not in target and _counts(n)]
    shapes = [
        f"{n.partition('/')[2]} is {_shape(stored[n])} there and {_shape(target[n])} here"
        for n in target
        if n in stored and _shape(stored[n]) != _shape(target[n])
    ]
    if not (only_here or only_there or shapes):
        return
    problems = shapes[:_SHOWN] or []
    for label, names in (("only in the snapshot", only_there), ("only in this run", only_here)):
        if names:
            problems.append(f"{label}: {listed([n.partition('/')[2] for n in sorted(names)], _SHOWN)}")
    raise UsageError(
        f"{where} contains another model or optimizer: {'; '.join(problems)}",
        hint="give this run another folder, or create the same model; nothing was loaded or overwritten",
    )


def as_optimizers(optimizer: Any) -> tuple[Any, ...]:
    """Return no optimizer, one optimizer or several as a tuple."""
    if optimizer is None:
        return ()
    return tuple(optimizer) if isinstance(optimizer, Sequence) else (optimizer,)


def _counts(name: str) -> bool:
    """Return whether a name must match.

    Hyperparameters differ between torch versions and schedulers, tensors must match.
    """
    return name.startswith(("model/", "buffer/", "optim/state."))


def _parameter(name: str) -> str:
    """Return the parameter of a name: `layers.0.weight` for `optim/state.layers.0.weight.exp_avg`."""
    return name.removeprefix("optim/state.").rpartition(".")[0]


def _plain(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _shape(value: Any) -> str | None:
    """Return the shape of a tensor or of torch's metadata of one, for people. None for plain values."""
    size = getattr(value, "size", None)
    if size is None:
        return None
    shape = tuple(size() if callable(size) else size)
    return "x".join(str(n) for n in shape) or "a scalar"


_DEVICES = ("cuda", "xpu")


def capture_rng() -> dict[str, Any]:
    """Return the state of every generator, as plain values and tensors."""
    import torch

    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=True)
    for kind in _DEVICES:
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            state[kind] = module.get_rng_state()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Restore every generator that was saved and that exists here."""
    import torch

    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])
    for kind in _DEVICES:
        module = getattr(torch, kind, None)
        if kind in state and module is not None and module.is_available():
            module.set_rng_state(state[kind])


def seed_newcomer(state: dict[str, Any], rank: int) -> None:
    """Seed a rank that did not exist when the snapshot was made, from rank 0's state.

    The seed is the same at every resume.
    """
    import torch

    digest = hashlib.sha256(state["torch"].numpy().tobytes() + rank.to_bytes(8, "big")).digest()
    seed = int.from_bytes(digest[:8], "big") >> 1
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in state:
        import numpy as np

        np.random.seed(seed % 2**32)
