"""The environment that a site gives its ranks, for tests: what planning decides, without a plan around it."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.model.condition import Facts, When, holds
from windlass.model.site import Site, SiteFile
from windlass.sites.catalog import load_site

SLINGSHOT = ("aurora", "clariden", "elcapitan", "frontier", "hpe-gh200", "isambard-ai", "lumi", "perlmutter", "polaris")


def facts_of(file: SiteFile, *, nodes: int, options: Iterable[str] = (), container: bool = False) -> Facts:
    return Facts(
        nodes=nodes,
        ranks_per_node=4,
        scheduler=file.scheduler.kind,
        launcher=file.launcher.kind,
        container=container,
        device_unit=file.devices.unit,
        options=frozenset(options),
    )


def variables(
    name: str | Site, *, nodes: int = 2, options: Iterable[str] = (), container: bool = False
) -> dict[str, str | None]:
    """Variables of a job, the last one that holds winning. Those that only the node can decide are taken as found."""
    site = load_site(name) if isinstance(name, str) else name
    facts = facts_of(site.file, nodes=nodes, options=options, container=container)
    return {setting.name: setting.value for setting in site.file.settings if holds(setting.when, facts)}


def directives(name: str, *, nodes: int = 2, options: Iterable[str] = ()) -> list[tuple[str, ...]]:
    """The site's own words for its scheduler."""
    file = load_site(name).file
    facts = facts_of(file, nodes=nodes, options=options)
    return [argument.words for argument in file.scheduler.directives if holds(argument.when, facts)]


def launcher_words(name: str, *, nodes: int = 2, options: Iterable[str] = ()) -> list[tuple[str, ...]]:
    file = load_site(name).file
    facts = facts_of(file, nodes=nodes, options=options)
    return [argument.words for argument in file.launcher.arguments if holds(argument.when, facts)]


def binds(name: str, runtime: str, *, nodes: int, images: tuple[str, ...] = ()) -> list[str]:
    """What a container of the site binds, as `source` or `source:target`."""
    file = load_site(name).file
    facts = facts_of(file, nodes=nodes, container=True)
    (spec,) = [spec for spec in file.containers if spec.runtime == runtime and spec.images == images]
    return [
        bind.source_path + (f":{bind.target}" if bind.target else "") for bind in spec.binds if holds(bind.when, facts)
    ]


def always(when: When) -> bool:
    return when == When()
