"""Detect from evidence which machine this is. Pure.

The result contains the evidence. If the evidence is insufficient, the site is unknown. One host prefix never decides:
Perlmutter, LUMI, Alps and Isambard all use `nid*`. A host name counts only together with other evidence. If two sites
have equal evidence, the site is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from windlass.base.settings import NO_FOLDERS, ConfigFolders
from windlass.model.site import DetectSpec
from windlass.sites.evidence import Evidence, gather_evidence
from windlass.sites.folders import catalog_names, catalog_path, own_paths, read_builtin, read_detect

_ENOUGH = 3
_WEIGHTS = {"cluster": 3, "variable": 3, "domain": 3, "file": 2, "host": 1}
_AGAINST = {"cluster": -3, "variable": -3, "arch": -4, "vendor": -4, "scheduler": -2}

_GENERIC = {"slurm": "generic-slurm", "pbs": "generic-pbs", "flux": "generic-flux"}


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """The signs by which a site is recognised."""

    name: str
    detect: DetectSpec = DetectSpec()
    scheduler: str | None = None
    arch: str = ""
    vendor: str | None = None


class Clue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of evidence for or against one site."""

    site: str
    weight: int
    text: str

    def line(self) -> str:
        word = "for" if self.weight > 0 else "against" if self.weight < 0 else "perhaps"
        return f"{word} {self.site}: {self.text}"


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this is a login node, where ranks must not run. `unknown` without evidence."""

    verdict: Literal["yes", "no", "unknown"]
    because: str


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    """The detected site and the evidence."""

    site: str | None
    """A site of the catalog, or None if unknown."""
    fallback: str
    """The generic site for the scheduler on this machine, used if `site` is None."""
    because: str
    clues: tuple[Clue, ...]
    login: Login
    evidence: Evidence

    @property
    def name(self) -> str:
        """The site to load."""
        return self.site or self.fallback

    def lines(self) -> tuple[str, ...]:
        """The answer, the evidence for and against, and whether this is a login node."""
        head = f"site: {self.site}" if self.site else f"site: unknown, {self.fallback} instead"
        return (
            f"{head} ({self.because})",
            *(f"  {clue.line()}" for clue in self.clues),
            f"login node: {self.login.verdict} ({self.login.because})",
        )


def detect_site(
    folders: ConfigFolders = NO_FOLDERS,
    *,
    environ: Mapping[str, str],
    ask_scheduler: bool = False,
    vendor: str | None = None,
) -> Detection:
    """Inspect this machine and decide. Takes milliseconds unless the scheduler may be asked."""
    catalog = catalog_signs(folders)
    evidence = gather_evidence(
        environ=environ,
        variables=[name for signs in catalog for name in signs.detect.variables],
        paths=[path for signs in catalog for path in signs.detect.files],
        ask_scheduler=ask_scheduler,
    )
    return detect(msgspec.structs.replace(evidence, vendor=vendor), catalog)


def catalog_signs(folders: ConfigFolders = NO_FOLDERS) -> tuple[Signs, ...]:
    """Signs of every site. Reads only this part of each catalog file."""
    found: list[Signs] = []
    for name in catalog_names("site", folders):
        builtin = catalog_path("site", name)
        paths = (*reversed(own_paths("site", name, folders).values()), *((builtin,) if builtin else ()))
        if not paths or name in _GENERIC.values() or name == "workstation":
            continue
        heads = [read_detect(path) for path in paths]
        head = next((each for each in heads if each.detect), heads[-1])
        hardware = catalog_path("hardware", head.hardware) if head.hardware else None
        node = read_builtin(hardware) if hardware else {}
        found.append(
            Signs(
                name=name,
                detect=msgspec.convert(head.detect, DetectSpec),
                scheduler=head.scheduler,
                arch=node.get("node", {}).get("arch", ""),
                vendor=node.get("devices", {}).get("vendor"),
            )
        )
    return tuple(found)


def detect(evidence: Evidence, catalog: Sequence[Signs]) -> Detection:
    """The site with the strongest evidence, if the evidence is sufficient and unambiguous."""
    clues = [clue for signs in catalog for clue in _clues(evidence, signs)]
    scores = {signs.name: sum(clue.weight for clue in clues if clue.site == signs.name) for signs in catalog}
    ranked = sorted(((score, name) for name, score in scores.items() if score >= _ENOUGH), reverse=True)
    best = [name for score, name in ranked if score == ranked[0][0]]
    site: str | None = None
    if len(best) == 1:
        site, because = best[0], _why(best[0], clues)
    elif best:
        because = f"the evidence is the same for {' and '.join(sorted(best))}; choose one with --site"
    else:
        because = _why_unknown(clues)
    login = _login(evidence, next((signs for signs in catalog if signs.name == site), None))
    shown = sorted(clues, key=lambda clue: (clue.site != site, -scores[clue.site], clue.site, -clue.weight))
    return Detection(
        site=site,
        fallback=generic_site(evidence),
        because=because,
        clues=tuple(shown),
        login=login,
        evidence=evidence,
    )


def _clues(evidence: Evidence, signs: Signs) -> Iterable[Clue]:
    """Evidence about one site. Host names and contradictions count only together with other evidence."""
    strong = [
        *_cluster(evidence, signs),
        *_variables(evidence, signs),
        *_domain(evidence, signs),
        *_file(evidence, signs),
    ]
    host = list(_host(evidence, signs))
    if not any(clue.weight > 0 for clue in strong):
        return [
            msgspec.structs.replace(clue, weight=0, text=f"{clue.text}, which is not enough evidence") for clue in host
        ]
    return [*strong, *host, *_contradictions(evidence, signs)]


def _cluster(evidence: Evidence, signs: Signs) -> Iterable[Clue]:
    known = signs.detect.cluster_names
    if not known or evidence.cluster_name is None:
        return
    text = f"the scheduler's cluster is {evidence.cluster_name!r} ({evidence.cluster_where})"
    matches = evidence.cluster_name.lower() in {name.lower() for name in known}
    yield Clue(site=signs.name, weight=_WEIGHTS["cluster"] if matches else _AGAINST["cluster"], text=text)


def _variables(evidence: Evidence, signs: Signs) -> Iterable[Clue]:
    """At most one clue for and one against, regardless of the number of variables that a site names."""
    matching: list[str] = []
    others: list[str] = []
    for name, pattern in signs.detect.variables.items():
        if name in evidence.variables:
            text = f"{name} is {evidence.variables[name]!r}"
            (matching if re.fullmatch(pattern, evidence.variables[name]) else others).append(text)
    if matching:
        yield Clue(site=signs.name, weight=_WEIGHTS["variable"], text=", ".join(matching))
    if others:
        yield Clue(site=signs.name, weight=_AGAINST["variable"], text=", ".join(others))


def _domain(evidence: Evidence, signs: Signs) -> Iterable[Clue]:
    for domain, where in evidence.domains.items():
        for known in signs.detect.domains:
            if domain == known or domain.endswith("." + known):
                yield Clue(site=signs.name, weight=_WEIGHTS["domain"], text=f"the domain is {domain} ({where})")
                return


def _file(evidence: Evidence, signs: Signs) -> Iterable[Clue]:
    there = [path for path in signs.detect.files if path in evidence.files]
    if there:
        yield Clue(site=signs.name, weight=_WEIGHTS["file"], text=f"{', '.join(there)} exists")


def _host(evidence: Evidence, signs: Signs) -> Iterable[Clue]:
    patterns = (*signs.detect.hostnames, *signs.detect.login_hosts)
    if any(re.fullmatch(pattern, evidence.hostname) for pattern in patterns):
        yield Clue(site=signs.name, weight=_WEIGHTS["host"], text=f"the host name is {evidence.hostname}")


def _contradictions(evidence: Evidence, signs: Signs) -> Iterable[Clue]:
    if signs.arch and evidence.arch and signs.arch != evidence.arch and not _is_login_host(evidence, signs):
        text = f"this node is {evidence.arch}, its nodes are {signs.arch}"
        yield Clue(site=signs.name, weight=_AGAINST["arch"], text=text)
    if signs.vendor and evidence.vendor and signs.vendor != evidence.vendor:
        text = f"devices here are made by {evidence.vendor}, there by {signs.vendor}"
        yield Clue(site=signs.name, weight=_AGAINST["vendor"], text=text)
    if signs.scheduler and evidence.schedulers and signs.scheduler not in evidence.schedulers:
        text = f"the scheduler here is {' and '.join(evidence.schedulers)}, there {signs.scheduler}"
        yield Clue(site=signs.name, weight=_AGAINST["scheduler"], text=text)


def _is_login_host(evidence: Evidence, signs: Signs) -> bool:
    return any(re.fullmatch(pattern, evidence.hostname) for pattern in signs.detect.login_hosts)


def _why(site: str, clues: Iterable[Clue]) -> str:
    strongest = max((clue for clue in clues if clue.site == site), key=lambda clue: clue.weight)
    return strongest.text


def _why_unknown(clues: Sequence[Clue]) -> str:
    names = sorted({clue.site for clue in clues if clue.weight >= 0})
    if not names:
        return "no site of the catalog matches"
    return f"not enough evidence for {' or '.join(names)}"


def generic_site(evidence: Evidence) -> str:
    if evidence.job is not None:
        return _GENERIC[evidence.job]
    for kind in evidence.schedulers:
        return _GENERIC[kind]
    return "workstation"


def _login(evidence: Evidence, signs: Signs | None) -> Login:
    if evidence.job is not None:
        return Login(verdict="no", because=f"this is inside a {evidence.job} job")
    if signs is not None and _is_login_host(evidence, signs):
        return Login(verdict="yes", because=f"{evidence.hostname} is the name of a login node of {signs.name}")
    if signs is not None:
        return Login(verdict="unknown", because=f"{evidence.hostname} is not a name of a login node of {signs.name}")
    if evidence.schedulers:
        return Login(verdict="unknown", because=f"{_any(evidence.schedulers)} and no job: it may be one")
    return Login(verdict="no", because="there is no scheduler here")


def _any(schedulers: dict[str, str]) -> str:
    return next(iter(schedulers.values()))
