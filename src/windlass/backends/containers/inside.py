"""Shell code that runs in the container before the user's command: an activation, and the export of some variables.

A variable is passed under another name (`WINDLASS_INSIDE_X`) in three cases: the runtime drops it, the image's value
would replace it, or it is prepended to the image's value, which is known only in the container. A short `sh` script
then sets the variable. The user's arguments are positional parameters of that shell, so it does not evaluate them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from windlass.model.origin import Argument
from windlass.model.plan import ContainerPlan, Setting

CARRIER = "WINDLASS_INSIDE_"
NODE_VARIABLES = "$WINDLASS_CACHE_DIR/../host-libs/env.sh"
"""Written by the node next to the host's libraries (`node/libs/place.py`). No braces: the container expands it."""
_LOOP = "windlass_name"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """A variable to pass: the carrier setting on the host, and how the container sets the variable from it."""

    name: str
    carrier: Setting
    prepend: bool = False
    append: bool = False


def carry(settings: Iterable[Setting]) -> tuple[Carried, ...]:
    """Pass the settings' values. The host does not have these variables."""
    made: list[Carried] = []
    for setting in settings:
        if setting.value is None or not _NAME.match(setting.name):
            continue
        again = sum(other.name == setting.name for other in made)
        made.append(
            Carried(
                name=setting.name,
                prepend=setting.prepend,
                append=setting.append,
                carrier=msgspec.structs.replace(
                    setting,
                    name=f"{CARRIER}{setting.name}" + (f"_{again + 1}" if again else ""),
                    prepend=False,
                    append=False,
                    keep_user=False,
                    because=f"{setting.because}; passed to the container as {setting.name}",
                ),
            )
        )
    return tuple(made)


def carry_current(settings: Iterable[Setting], because: str) -> tuple[Carried, ...]:
    """Pass the values that the rank has after all settings, including the user's values."""
    return tuple(
        Carried(name=s.name, carrier=current(s, f"{CARRIER}{s.name}", because))
        for s in settings
        if s.value is not None and _NAME.match(s.name)
    )


def current(setting: Setting, name: str, because: str) -> Setting:
    """A setting with another name, the current value of `setting`, and the same condition."""
    return Setting(
        name=name,
        value=f"${{{setting.name}}}",
        expand=True,
        keep_user=False,
        because=because,
        origin=setting.origin,
        when=setting.when,
    )


def rank_settings(names: Iterable[str]) -> tuple[Setting, ...]:
    """The rank script's variables as settings, so that they are passed like the others.

    Variables of windlass and Horovod are left out. They arrive unchanged, because no image sets them."""
    return tuple(
        Setting(name=name, value=f"${{{name}}}", expand=True, because="the numbers of this rank")
        for name in names
        if not name.startswith(("WINDLASS_", "HOROVOD_"))
    )


def host_side(carried: Iterable[Carried]) -> tuple[Setting, ...]:
    """Variables to set on the host."""
    return tuple(entry.carrier for entry in carried)


def unset_names(settings: Iterable[Setting]) -> tuple[str, ...]:
    """Variables that must not exist in the container even if the image sets them.

    The host handles a variable that depends on a test on the node, because the container cannot repeat that test."""
    return tuple(s.name for s in settings if s.value is None and not s.when.at_run_time and _NAME.match(s.name))


def inner_arguments(
    plan: ContainerPlan, carried: tuple[Carried, ...] = (), unset: tuple[str, ...] = ()
) -> tuple[Argument, ...]:
    """The arguments between the image and the user's command. Empty if nothing has to run in the container first."""
    activate = plan.activate
    steps: list[str] = []
    reasons: list[str] = []
    if activate.strip():
        steps.append(_kept_for_inside(activate.strip().rstrip(";").rstrip()))
        reasons.append("the image has to be activated first")
    if carried:
        steps += _placing(carried)
        reasons.append("sets variables that the container runtime would not pass")
    if unset:
        steps.append("unset " + " ".join(unset))
        reasons.append("unsets variables that the image may set")
    if plan.host_libs is not None:
        steps.append(f'[ ! -r "{NODE_VARIABLES}" ] || . "{NODE_VARIABLES}"')
        reasons.append("reads the node's result about the host's libraries")
    if not steps:
        return ()
    # Activation scripts use `source` and arrays, which need bash. Everything else works in any sh.
    shell = "bash" if activate.strip() else "sh"
    separator = "\n" if "#" in activate or "\n" in activate else "; "
    text = separator.join([*steps, 'exec "$@"'])
    return (Argument(words=(shell, "-c", text, shell), because="; ".join(reasons)),)


def _placing(carried: tuple[Carried, ...]) -> list[str]:
    plain = [entry.name for entry in carried if not (entry.prepend or entry.append)]
    steps: list[str] = []
    if plain:
        names = " ".join(dict.fromkeys(plain))
        # The loop variable has a long name, because it overwrites a user variable of the same name.
        steps.append(
            f"for {_LOOP} in {names}; do"
            f' eval "[ -z \\"\\${{{CARRIER}${_LOOP}+x}}\\" ] || export ${_LOOP}=\\"\\${CARRIER}${_LOOP}\\"";'
            f' unset "{CARRIER}${_LOOP}"; done; unset {_LOOP}'
        )
    for entry in carried:
        name, carrier = entry.name, entry.carrier.name
        joined = f"${carrier}${{{name}:+:${name}}}" if entry.prepend else f"${{{name}:+${name}:}}${carrier}"
        if entry.prepend or entry.append:
            steps.append(f'[ -z "${{{carrier}+x}}" ] || export {name}="{joined}"; unset {carrier}')
    return steps


def _kept_for_inside(text: str) -> str:
    """Replace `${NAME}` with `${NAME-}`, which the host does not expand and which has the same meaning."""
    return _BRACED.sub(r"${\1-}", text)
