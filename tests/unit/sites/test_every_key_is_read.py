"""Facts that nobody reads are lies in waiting: every key of the schema is read by something.

The values of the catalog are watched while plans are made and shown; a key that nothing asked for is either read from
now on, or deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from planning import plan_for
from windlass.build.envs.plan import EnvRequest, MachineFacts, plan_env
from windlass.build.envs.render import script_text
from windlass.cli.sites import site_text
from windlass.errors import UsageError
from windlass.model.condition import Table
from windlass.model.request import Request
from windlass.model.site import Site
from windlass.plan.explain import find_name
from windlass.plan.queues import refuse_incomplete
from windlass.plan.show import plan_text
from windlass.run.interpreter import python_module
from windlass.sites.catalog import load_site, site_names
from windlass.sites.detect import catalog_signs, detect
from windlass.sites.evidence import Evidence

JOB = {"account": "ACCOUNT", "time": "30m"}
CASES: tuple[dict[str, Any], ...] = (
    {"nodes": 1},
    {"nodes": 2, "restarts": 1, "cache": ("/opt/aurora/x",)},
    {"nodes": 2, "container": "image.sif"},
    {"nodes": 2, "container": "docker.io/library/debian:12"},
    {"nodes": 20, "kind": "script", "interpreter": "/lus/flare/p/venv/bin/python"},
)
EVIDENCE = Evidence(
    hostname="login01",
    domains={"frontier.olcf.ornl.gov": "/etc/resolv.conf"},
    cluster_name="frontier",
    variables={"LMOD_SYSTEM_NAME": "frontier"},
)
OTHERWISE = {
    "PartitionSpec": "laid over the site as a table, before there are values (sites/catalog.py)",
    "SiteFile.kind": "how files are found and merged, which is done with tables",
    "SiteFile.name": "the same",
    "SiteFile.extends": "the same",
    "SiteFile.drop": "the same",
    "SiteFile.detect": "read from each file alone, for `Signs` (sites/detect.py)",
    "QueueSpec.accounts": "where a partition and an account are named (plan/queues.py)",
    "SiteFile.login_refuse": "on a login node (run/planning.py)",
    "StorageSpec.caches": "for --cache copper (run/auto_cache.py)",
    "SiteFile.login_imports": "on a login node (run/sidecars/ahead.py)",
}
"""Keys that are read where this test does not go."""


def _tables(base: type = Table) -> Iterator[type]:
    for sub in base.__subclasses__():
        module = sub.__module__  # job files and images have tables too
        if module.startswith("windlass.model.") and not module.endswith((".job", ".request")):
            yield sub
        yield from _tables(sub)


def _watcher(name: str, fields: frozenset[str], read: set[tuple[str, str]]) -> Callable[[object, str], object]:
    def get(self: object, attribute: str) -> object:
        if attribute in fields:
            read.add((name, attribute))
        return object.__getattribute__(self, attribute)

    return get


@pytest.fixture
def read() -> Iterator[set[tuple[str, str]]]:
    """Tables and keys that were read since."""
    seen: set[tuple[str, str]] = set()
    watched = list(_tables())
    for table in watched:
        table.__getattribute__ = _watcher(table.__name__, frozenset(table.__struct_fields__), seen)  # type: ignore[attr-defined, method-assign, assignment]
    yield seen
    for table in watched:
        del table.__getattribute__  # type: ignore[attr-defined]


def _use(site: Site) -> None:
    """What windlass does with a site: show it, plan jobs on it, explain a word, ask what its scheduler needs,
    make an environment for it."""
    site_text(site)
    for case in CASES:
        try:
            plan, _ = plan_for(site.name, "train.py", **{**JOB, **case})
            plan_text(plan, script=True)
            find_name("NCCL_NET", plan, site)
        except UsageError:
            continue  # no container of this kind, no job of this size, no such variable
    script_text(plan_env(EnvRequest(extras=("mpi4py", "deepspeed")), site, MachineFacts()))
    python_module(Request(command=("train.py",), kind="script"), site)
    refuse_incomplete(Request(command=("true",), account="a", time="1h"), site)


def test_every_key_of_the_schema_is_read_by_something(read: set[tuple[str, str]]) -> None:
    for name in site_names():
        _use(load_site(name))
    detect(EVIDENCE, catalog_signs())
    keys = [f"{table.__name__}.{field}" for table in _tables() for field in table.__struct_fields__]  # type: ignore[attr-defined]
    known = {f"{table}.{field}" for table, field in read} | set(OTHERWISE)
    unread = [key for key in keys if not key.endswith(".source") and not {key, key.partition(".")[0]} & known]
    assert unread == [], "read it (in a plan, in `sites show`), or delete it from the schema and from the files"
