"""What a login node and a compute node of each site show: `tests/data/surroundings/SITE/{login,compute}.json`.

Host names, variables and files are those of the documentation (`source`). Answers of the scheduler's commands are
as short as planning needs them. `stand_on` makes a machine of one: only the edges of windlass are replaced.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from windlass.model.topology import Core, Topology
from windlass.run import context
from windlass.sites import detect, evidence
from windlass.sites.catalog import load_site
from windlass.sites.topology import described
from windlass.sites.topology.described import topology_from_spec

FOLDER = Path(__file__).parent / "data" / "surroundings"
SITES = tuple(sorted(path.name for path in FOLDER.iterdir()))
OFFICE = Topology(arch="x86_64", cores=tuple(Core(cpus=(n,)) for n in range(16)), allowed=tuple(range(16)))
"""A login node or a laptop: no device."""


def stand_on(place: str, site: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Make this process stand on the `login` or `compute` node of a site, or on a `laptop`. Returns its variables."""
    if place == "laptop":
        seen = {"hostname": "laptop", "arch": "x86_64", "environ": {}, "texts": {}, "paths": [], "commands": {}}
    else:
        seen = json.loads((FOLDER / site / f"{place}.json").read_text())
    root = folder / f"{place}-root"
    for path, text in [*seen["texts"].items(), *((path, "") for path in seen["paths"])]:
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    programs = root / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    for name, answer in seen["commands"].items():
        (programs / name).write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        (programs / name).chmod(0o755)
    node = load_site(site).file
    topology = topology_from_spec(node.node, node.devices) if place == "compute" else OFFICE

    def gathered(**values: Any) -> evidence.Evidence:
        found = evidence.gather_evidence(hostname=seen["hostname"], root=root, **values)
        return msgspec.structs.replace(found, arch=seen["arch"])

    monkeypatch.setattr(detect, "gather_evidence", gathered)
    monkeypatch.setattr(socket, "gethostname", lambda: seen["hostname"])
    for module in (context, described):
        monkeypatch.setattr(module, "probe_topology", lambda **_: topology)
    variables = {name: value.replace("ROOT", str(root)) for name, value in seen["environ"].items()}
    return {**variables, "PATH": f"{programs}:{os.defpath}"}
