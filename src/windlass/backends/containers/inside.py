"""What runs inside the container before the user's command: an activation, and variables that cannot come in alone.

A variable is carried under another name (`WINDLASS_INSIDE_X`) where the runtime drops it, where the image's own value
would win, or where it goes in front of the image's value, which only the inside knows. A few words of `sh` put it in
place. The user's words are positional parameters of that shell and are never looked at by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from windlass.model.origin import Argument
from windlass.model.plan import ContainerPlan, Setting

CARRIER = "WINDLASS_INSIDE_"
NODE_VARIABLES = "$WINDLASS_CACHE_DIR/../host-libs/env.sh"
"""Written by the node beside the host's libraries (`images/node/place.py`); no braces: the inside expands it."""
_LOOP = "windlass_name"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """A variable on its way in: the setting of its carrier on the host, and how it is put in place inside."""

    name: str
    carrier: Setting
    prepend: bool = False
    append: bool = False


def carry(settings: Iterable[Setting]) -> tuple[Carried, ...]:
    """Settings whose own value travels: the host itself does not have the variable."""
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
                    because=f"{setting.because}; carried to the inside as {setting.name}",
                ),
            )
        )
    return tuple(made)


def carry_current(settings: Iterable[Setting], because: str) -> tuple[Carried, ...]:
    """Settings that the host has: what travels is the value that the rank ended up with, the user's own included."""
    return tuple(
        Carried(name=s.name, carrier=current(s, f"{CARRIER}{s.name}", because))
        for s in settings
        if s.value is not None and _NAME.match(s.name)
    )


def current(setting: Setting, name: str, because: str) -> Setting:
    """A setting of another name with the present value of `setting`, under the same condition."""
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
    """The rank script's own variables as settings, so that they can be carried like the others. Those of windlass and
    Horovod come in by themselves: no image has them."""
    return tuple(
        Setting(name=name, value=f"${{{name}}}", expand=True, because="who this rank is")
        for name in names
        if not name.startswith(("WINDLASS_", "HOROVOD_"))
    )


def host_side(carried: Iterable[Carried]) -> tuple[Setting, ...]:
    """Variables to set on the host."""
    return tuple(entry.carrier for entry in carried)


def unset_names(settings: Iterable[Setting]) -> tuple[str, ...]:
    """Variables that must not exist inside, whatever the image says. One that a test on the node decides is left to
    the host: the inside cannot repeat that test."""
    return tuple(s.name for s in settings if s.value is None and not s.when.at_run_time and _NAME.match(s.name))


def inner_arguments(
    plan: ContainerPlan, carried: tuple[Carried, ...] = (), unset: tuple[str, ...] = ()
) -> tuple[Argument, ...]:
    """Words between the image and the user's command; none where nothing has to be done inside."""
    activate = plan.activate
    steps: list[str] = []
    reasons: list[str] = []
    if activate.strip():
        steps.append(_kept_for_inside(activate.strip().rstrip(";").rstrip()))
        reasons.append("the image has to be activated first")
    if carried:
        steps += _placing(carried)
        reasons.append("variables are put in place that would not arrive by themselves")
    if unset:
        steps.append("unset " + " ".join(unset))
        reasons.append("variables that the image may set are taken away")
    if plan.host_libs is not None:
        steps.append(f'[ ! -r "{NODE_VARIABLES}" ] || . "{NODE_VARIABLES}"')
        reasons.append("what the node has found out about the host's libraries is read")
    if not steps:
        return ()
    # Activation scripts use `source` and arrays, which only bash knows; everything else is for any sh.
    shell = "bash" if activate.strip() else "sh"
    separator = "\n" if "#" in activate or "\n" in activate else "; "
    text = separator.join([*steps, 'exec "$@"'])
    return (Argument(words=(shell, "-c", text, shell), because="; ".join(reasons)),)


def _placing(carried: tuple[Carried, ...]) -> list[str]:
    plain = [entry.name for entry in carried if not (entry.prepend or entry.append)]
    steps: list[str] = []
    if plain:
        names = " ".join(dict.fromkeys(plain))
        # The loop's variable has a long name because it replaces one of the same name in the user's environment.
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
    """`${NAME}` in a command line is expanded on the host; `${NAME-}` means the same and is left for the inside."""
    return _BRACED.sub(r"${\1-}", text)
