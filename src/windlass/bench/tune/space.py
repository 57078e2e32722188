"""The settings to try and their values, from a file of the user or from public recommendations.

A value `unset` leaves a variable out. This is often the best choice and always worth a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from windlass.base.notation.shell import NAME
from windlass.base.tables import tomllib
from windlass.errors import ConfigError
from windlass.node.sys.reading import read_text

UNSET = "unset"
Choice = Mapping[str, str]
"""Value of each setting by its name."""
_MAX_VALUES = 64


class TunedSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One setting to try.

    With `argument` it is an argument of the script, in which `{value}` is replaced by the value. Otherwise it is a
    variable of the ranks. Values that are `ordered` (threads, workers) are climbed, and not all of them are tried.
    """

    name: str
    values: tuple[str, ...]
    ordered: bool = False
    argument: str | None = None
    because: str = ""


class _SpaceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    setting: tuple[TunedSetting, ...]


def read_space(path: Path) -> tuple[TunedSetting, ...]:
    """Return the settings of a TOML file of `[[setting]]` tables. Raises `ConfigError`."""
    try:
        table: dict[str, Any] = tomllib.loads(read_text(path, follow=True).lstrip("\ufeff"))
        space = msgspec.convert(table, _SpaceFile).setting
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="--space FILE names a TOML file") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or another structure
        hint = 'write [[setting]] with name = "NCCL_ALGO" and values = ["unset", "Ring", "Tree"]'
        raise ConfigError(f"{path}: {error}", hint=hint) from error
    check_space(space, str(path))
    return space


def check_space(space: tuple[TunedSetting, ...], where: str) -> None:
    if not space:
        raise ConfigError(f"{where}: nothing to try", hint="add a [[setting]]")
    names = [setting.name for setting in space]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{where}: {twice} is there twice", hint="give one list of values")
    for setting in space:
        if setting.argument is None and not NAME.match(setting.name):
            raise ConfigError(
                f"{where}: {setting.name!r} is not the name of a variable", hint="an argument of the script?"
            )
        if setting.argument is not None and "{value}" not in setting.argument:
            raise ConfigError(
                f"{where}: {setting.argument!r} has no {{value}}", hint='as in argument = "--workers={value}"'
            )
        if not 2 <= len(set(setting.values)) == len(setting.values) <= _MAX_VALUES:
            raise ConfigError(
                f"{where}: {setting.name}: give 2 to {_MAX_VALUES} different values",
                hint="fewer values make fewer trials",
            )


_ORIGIN = "one of the variables that NCCL's and the sites' pages tell people to try"
NCCL = (
    TunedSetting(name="NCCL_ALGO", values=(UNSET, "Ring", "Tree"), because=_ORIGIN),
    TunedSetting(name="NCCL_PROTO", values=(UNSET, "^LL128", "Simple"), because=_ORIGIN),
    TunedSetting(name="NCCL_CROSS_NIC", values=(UNSET, "0", "1", "2"), because=_ORIGIN),
    TunedSetting(name="NCCL_NET_GDR_LEVEL", values=(UNSET, "PHB", "SYS"), because=_ORIGIN),
    TunedSetting(name="NCCL_NCHANNELS_PER_NET_PEER", values=(UNSET, "4", "16", "32"), ordered=True, because=_ORIGIN),
)
SLINGSHOT = (
    TunedSetting(name="FI_CXI_RX_MATCH_MODE", values=(UNSET, "software", "hybrid"), because="sites disagree about it"),
    TunedSetting(name="FI_CXI_DEFAULT_TX_SIZE", values=(UNSET, "2048", "16384"), because="sites disagree about it"),
)
ONECCL = (
    TunedSetting(name="CCL_ALLREDUCE", values=(UNSET, "topo", "ring", "rabenseifner"), because="oneCCL's algorithms"),
    TunedSetting(
        name="CCL_ALLREDUCE_SCALEOUT", values=(UNSET, "ring", "rabenseifner", "double_tree"), because="the same"
    ),
    TunedSetting(name="CCL_BCAST", values=(UNSET, "double_tree", "naive"), because="the same, of broadcasts"),
)


def default_space(vendor: str | None, network: str | None, cores: int) -> tuple[TunedSetting, ...]:
    """Return the settings for devices of this vendor on this network, and the thread counts of a rank with `cores`."""
    threads = sorted({1, max(1, cores // 2), max(1, cores)})
    found = (
        [TunedSetting(name="OMP_NUM_THREADS", values=tuple(str(n) for n in threads), ordered=True)] if cores > 1 else []
    )
    if vendor in {"nvidia", "amd"}:
        found += [*NCCL, *(SLINGSHOT if network == "slingshot-11" else ())]
    elif vendor == "intel":
        found += [*ONECCL, *(SLINGSHOT if network == "slingshot-11" else ())]
    if not found:
        raise ConfigError("no settings to try are known for this machine", hint="--space FILE names your own settings")
    return tuple(found)
