"""Which variables a plan has: candidates of all scopes, conditions decided, the user's own values on top. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import msgspec

from windlass.model.condition import ALWAYS, Facts, holds
from windlass.model.origin import Origin
from windlass.model.plan import Setting, setting_of
from windlass.model.secrets import MASK, is_secret
from windlass.model.site import ModuleSpec, SettingSpec


def settings_that_hold(specs: Iterable[SettingSpec], facts: Facts) -> tuple[Setting, ...]:
    """Settings whose conditions hold. Of one name the last wins, except that joined ones add up and that settings
    which the node decides stand beside their unconditional alternative."""
    return tuple(setting_of(spec) for spec in specs if holds(spec.when, facts))


def layer(*groups: Iterable[Setting]) -> tuple[Setting, ...]:
    """Groups of settings, lowest scope first, as one list in which each name is decided once."""
    chosen: dict[tuple[str, str, str], Setting] = {}
    for group in groups:
        for setting in group:
            key = (
                setting.name,
                f"{setting.prepend}{setting.value}" if setting.joins else "",
                setting.when.text() if setting.when.at_run_time else "",
            )
            if not setting.joins and not setting.when.at_run_time:
                for old in [k for k in chosen if k[0] == setting.name]:
                    del chosen[old]
            chosen[key] = setting
    return tuple(chosen.values())


def with_users_values(settings: Iterable[Setting], users: Mapping[str, str]) -> tuple[Setting, ...]:
    """Where the user has set a variable in the environment, their value wins and is shown as theirs."""
    out: dict[str, Setting] = {}
    rest: list[Setting] = []
    for setting in settings:
        mine = users.get(setting.name)
        if mine is None or not setting.keep_user or setting.joins:
            rest.append(setting)
        elif setting.name not in out:
            catalog = "unset it" if setting.value is None else f"say {setting.value}"
            same = mine == setting.value
            out[setting.name] = msgspec.structs.replace(
                setting,
                value=MASK if is_secret(setting.name, mine) else mine,
                because="you set it in your environment" + (", as the catalog does" if same else ""),
                origin=Origin(scope="environment", where="your environment"),
                when=ALWAYS,
                expand=False,
                secret=is_secret(setting.name, mine),
                module="",
                note="" if same else f"the catalog would {catalog}: {setting.because} ({setting.origin.text()})",
            )
            rest.append(out[setting.name])
    return tuple(rest)


def leave_to_modules(
    settings: Iterable[Setting], specs: Iterable[ModuleSpec], loaded: Iterable[str]
) -> tuple[Setting, ...]:
    """Settings of variables that a loaded module is known to set: each is marked with the module's name."""
    names = {name.split("/", 1)[0] for name in loaded}
    owners = {
        pattern: next(name for name in spec.load if name.split("/", 1)[0] in names)
        for spec in specs
        if names & {name.split("/", 1)[0] for name in spec.load}
        for pattern in spec.variables
    }
    return tuple(
        msgspec.structs.replace(setting, module=owner)
        if not setting.joins and (owner := next((m for p, m in owners.items() if fnmatchcase(setting.name, p)), ""))
        else setting
        for setting in settings
    )


Pairs = tuple[tuple[str, str], ...]


def flag_settings(
    env: Pairs, unset: tuple[str, ...], prepend: Pairs = (), append: Pairs = (), *, fill: bool = False
) -> tuple[Setting, ...]:
    """Settings from `--env`, `--unset`, `--env-prepend` and `--env-append`. Secrets are masked; the caller keeps them
    in a file, as they are. Of several that go to the front of one variable the first is searched first. `fill`: their
    values may hold placeholders."""
    flag = Origin(scope="flag", where="--env")
    made = [
        Setting(
            name=name,
            value=MASK if is_secret(name, value) else value,
            because="you asked for it",
            origin=flag,
            secret=is_secret(name, value),
            fill=fill,
            keep_user=False,
        )
        for name, value in env
    ]
    made += [
        Setting(
            name=name,
            value=None,
            because="you asked to leave it unset",
            origin=Origin(scope="flag", where="--unset"),
            keep_user=False,
        )
        for name in unset
    ]
    made += [_joining(name, value, prepend=True, fill=fill) for name, value in reversed(prepend)]
    made += [_joining(name, value, prepend=False, fill=fill) for name, value in append]
    return tuple(made)


def _joining(name: str, value: str, *, prepend: bool, fill: bool) -> Setting:
    flag = "--env-prepend" if prepend else "--env-append"
    return Setting(
        name=name,
        value=value,
        because="you asked for it",
        origin=Origin(scope="flag", where=flag),
        prepend=prepend,
        append=not prepend,
        fill=fill,
        keep_user=False,
    )
