"""Which machine this is: from evidence as the machines show it, and "unknown" where it does not suffice."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from looping import each
from windlass.sites import evidence as evidence_module
from windlass.sites.detect import Detection, catalog_signs, detect, detect_site
from windlass.sites.evidence import Evidence, existing, gather_evidence

CATALOG = catalog_signs()


def found(**fields: Any) -> Detection:
    fields.setdefault("arch", "x86_64")
    return detect(Evidence(**fields), CATALOG)


# What a node of each machine shows in a job, and what a login node shows where it differs.
SEEN: dict[str, tuple[str, dict[str, Any]]] = {
    "aurora compute": (
        "aurora",
        {
            "hostname": "x4117c3s3b0n0",
            "domains": {"hostmgmt2117.cm.aurora.alcf.anl.gov": "/etc/resolv.conf"},
            "files": ("/lus/flare", "/opt/aurora"),
            "schedulers": {"pbs": "this is a pbs job"},
            "job": "pbs",
        },
    ),
    "aurora login": (
        "aurora",
        {
            "hostname": "aurora-uan-0009",
            "files": ("/lus/flare", "/opt/aurora"),
            "schedulers": {"pbs": "qsub is in PATH and configured"},
        },
    ),
    "frontier compute": (
        "frontier",
        {
            "hostname": "frontier00144",
            "cluster_name": "frontier",
            "variables": {"LMOD_SYSTEM_NAME": "frontier"},
            "files": ("/lustre/orion",),
            "schedulers": {"slurm": "this is a slurm job"},
            "job": "slurm",
        },
    ),
    "lumi compute": (
        "lumi",
        {"hostname": "nid005123", "cluster_name": "lumi", "schedulers": {"slurm": "x"}, "job": "slurm"},
    ),
    "lumi login": ("lumi", {"hostname": "uan02", "files": ("/appl/lumi",), "schedulers": {"slurm": "x"}}),
    "perlmutter compute": (
        "perlmutter",
        {
            "hostname": "nid001234",
            "variables": {"NERSC_HOST": "perlmutter"},
            "schedulers": {"slurm": "x"},
            "job": "slurm",
        },
    ),
    "clariden compute": (
        "clariden",
        {
            "hostname": "nid006363",
            "arch": "aarch64",
            "variables": {"CLUSTER_NAME": "clariden"},
            "files": ("/capstor", "/iopsstor"),
            "schedulers": {"slurm": "x"},
            "job": "slurm",
        },
    ),
    "isambard compute": (
        "isambard-ai",
        {
            "hostname": "nid010123",
            "arch": "aarch64",
            "variables": {"LOCALDIR": "/local/user/1483800001", "PROJECTDIR_PUBLIC": "/projects/public/u6xx"},
            "schedulers": {"slurm": "x"},
            "job": "slurm",
        },
    ),
    "polaris compute": (
        "polaris",
        {
            "hostname": "x3004c0s7b1n0",
            "domains": {"hsn.cm.polaris.alcf.anl.gov": "PBS server"},
            "schedulers": {"pbs": "x"},
            "job": "pbs",
        },
    ),
    "sophia compute": (
        "sophia",
        {"hostname": "sophia-gpu-03", "files": ("/eagle", "/lus/eagle"), "schedulers": {"pbs": "x"}, "job": "pbs"},
    ),
    "el capitan": ("elcapitan", {"hostname": "elcap1234", "variables": {"LCSCHEDCLUSTER": "elcap"}}),
    "tuolumne": ("tuolumne", {"hostname": "tuolumne1005", "variables": {"LCSCHEDCLUSTER": "tuolumne"}}),
    "vista": (
        "vista",
        {
            "hostname": "c608-031",
            "arch": "aarch64",
            "domains": {"vista.tacc.utexas.edu": "host name"},
            "variables": {"TACC_SYSTEM": "vista"},
        },
    ),
    "juwels booster": (
        "juwels-booster",
        {"hostname": "jwb0123", "domains": {"juwels": "host name"}, "variables": {"SYSTEMNAME": "juwelsbooster"}},
    ),
    "jupiter": (
        "jupiter",
        {
            "hostname": "jpbo-001-01",
            "arch": "aarch64",
            "variables": {"SYSTEMNAME": "jupiter"},
            "files": ("/etc/FZJ/systemname",),
        },
    ),
    "leonardo": (
        "leonardo",
        {"hostname": "lrdn0123", "files": ("/leonardo_work", "/leonardo_scratch"), "cluster_name": "leonardo"},
    ),
    "marenostrum": ("marenostrum5", {"hostname": "as01r1b01", "variables": {"BSC_MACHINE": "mn5"}}),
}


@each("case", SEEN)
def test_each_machine_is_recognised_by_what_it_shows(case: str) -> None:
    site, fields = SEEN[case]
    detection = found(**fields)
    assert detection.site == site, "\n".join(detection.lines())
    assert detection.name == site
    assert any(line.startswith(f"  for {site}: ") for line in detection.lines()), "it says its evidence"


@each("host", ["nid001234", "nid005123", "nid006363", "login01", "x4117c3s3b0n0", "frontier00144"])
def test_a_host_name_alone_is_never_enough(host: str) -> None:
    detection = found(hostname=host, schedulers={"slurm": "sbatch is in PATH"}, job="slurm")
    assert detection.site is None
    assert detection.fallback == detection.name == "generic-slurm"
    assert all(clue.weight <= 0 for clue in detection.clues)


def test_an_ambiguous_host_name_names_the_machines_it_may_be() -> None:
    text = "\n".join(found(hostname="nid005123").lines())
    assert "not enough evidence for clariden or isambard-ai or lumi or perlmutter" in text
    assert "perhaps lumi: the host name is nid005123, which is not enough evidence" in text


def test_equal_evidence_for_two_machines_is_no_answer() -> None:
    detection = found(hostname="node1", variables={"NERSC_HOST": "perlmutter", "LMOD_SYSTEM_NAME": "frontier"})
    assert detection.site is None
    assert "the same for frontier and perlmutter" in detection.because


def test_another_cluster_name_speaks_against_a_site() -> None:
    detection = found(hostname="nid001234", variables={"NERSC_HOST": "perlmutter"}, cluster_name="muller")
    assert detection.site is None
    assert any(clue.weight < 0 and "muller" in clue.text for clue in detection.clues)


def test_another_architecture_speaks_against_a_site_but_not_on_its_login_nodes() -> None:
    fields: dict[str, Any] = {"files": ("/capstor",), "domains": {"clariden.cscs.ch": "/etc/resolv.conf"}}
    assert found(hostname="nid006363", arch="aarch64", **fields).site == "clariden"
    assert found(hostname="nid006363", arch="x86_64", **fields).site is None
    assert found(hostname="clariden-ln001", arch="x86_64", **fields).site == "clariden"


def test_devices_of_another_maker_speak_against_a_site() -> None:
    assert found(cluster_name="lumi", vendor="amd").site == "lumi"
    assert found(cluster_name="lumi", vendor="nvidia").site is None


def test_the_other_module_of_a_centre_is_not_taken_for_this_one() -> None:
    detection = found(hostname="jwc00n001", domains={"juwels": "host name"}, variables={"SYSTEMNAME": "juwels"})
    assert detection.site is None


@each(
    ("schedulers", "fallback"),
    [
        ({}, "workstation"),
        ({"slurm": "x"}, "generic-slurm"),
        ({"pbs": "x"}, "generic-pbs"),
        ({"flux": "x"}, "generic-flux"),
    ],
)
def test_an_unknown_machine_falls_back_to_its_scheduler(schedulers: dict[str, str], fallback: str) -> None:
    assert found(hostname="box", schedulers=schedulers).name == fallback


def test_a_job_decides_the_fallback_where_two_schedulers_are_here() -> None:
    both = {"slurm": "sbatch is in PATH", "flux": "this is a flux job"}
    assert found(schedulers=both, job="flux").name == "generic-flux"


def test_a_known_login_node_is_one_and_a_job_is_not() -> None:
    fields: dict[str, Any] = {"hostname": "login05", "variables": {"LMOD_SYSTEM_NAME": "frontier"}}
    login = found(**fields, schedulers={"slurm": "x"}).login
    assert (login.verdict, login.because) == ("yes", "login05 is the name of a login node of frontier")
    inside = found(**fields, schedulers={"slurm": "x"}, job="slurm").login
    assert (inside.verdict, inside.because) == ("no", "this is inside a slurm job")
    assert found(hostname="box").login.verdict == "no"
    assert found(hostname="box", schedulers={"slurm": "sbatch is in PATH"}).login.verdict == "unknown"


def test_evidence_is_read_from_files_and_variables_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/resolv.conf").write_text("nameserver 10.0.0.1\nsearch frontier.olcf.ornl.gov ccs.ornl.gov.\n")
    (tmp_path / "etc/slurm/slurm.conf").write_text("# site\nClusterName=frontier\nSlurmctldHost=x\n")
    (tmp_path / "etc/pbs.conf").write_text("PBS_SERVER=aurora-pbs-0001.hostmgmt.cm.aurora.alcf.anl.gov\n")
    (tmp_path / "lustre/orion").mkdir(parents=True)
    seen = gather_evidence(
        environ={"PATH": "/nowhere", "A": "1", "B": ""},
        variables=["A", "B", "C"],
        paths=["/lustre/orion", "/lus/flare"],
        hostname="node1.example.org",
        root=tmp_path,
    )
    assert seen.hostname == "node1"
    assert seen.domains == {
        "example.org": "host name",
        "hostmgmt.cm.aurora.alcf.anl.gov": "PBS server",
        "frontier.olcf.ornl.gov": "/etc/resolv.conf",
        "ccs.ornl.gov": "/etc/resolv.conf",
    }
    assert (seen.cluster_name, seen.cluster_where) == ("frontier", str(tmp_path / "etc/slurm/slurm.conf"))
    assert seen.variables == {"A": "1"}
    assert seen.files == ("/lustre/orion",)
    assert seen.job is None


@each(
    ("variables", "job"),
    [
        ({"SLURM_JOB_ID": "1"}, "slurm"),
        ({"PBS_JOBID": "1.pbs"}, "pbs"),
        ({"FLUX_URI": "local:///run/flux"}, "flux"),
        ({}, None),
    ],
)
def test_a_job_is_noticed_by_its_variables(variables: dict[str, str], job: str | None, tmp_path: Path) -> None:
    seen = gather_evidence(environ={"PATH": "/nowhere", **variables}, hostname="n", root=tmp_path)
    assert seen.job == job
    assert list(seen.schedulers) == ([job] if job else [])


@each("folder", ["opt/pbs", "sw/pbs-2022"])
def test_a_qsub_outside_of_path_is_found_by_the_configuration_of_pbs(tmp_path: Path, folder: str) -> None:
    root = tmp_path / folder.replace("/", "-")
    qsub = root / folder / "bin/qsub"
    qsub.parent.mkdir(parents=True)
    (root / "etc").mkdir()
    qsub.touch(mode=0o755)
    assert gather_evidence(environ={"PATH": "/nowhere"}, hostname="n", root=root).schedulers == {}
    (root / "etc/pbs.conf").write_text("PBS_SERVER=head\n" + (f"PBS_EXEC=/{folder}\n" if "sw" in folder else ""))
    seen = gather_evidence(environ={"PATH": "/nowhere"}, hostname="n", root=root)
    assert seen.schedulers == {"pbs": f"/{folder}/bin/qsub exists and is configured"}


def test_the_variable_of_the_cluster_wins_over_files(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName = other\n")
    environ = {"PATH": "/nowhere", "SLURM_CONF": str(conf)}
    assert gather_evidence(environ=environ, hostname="n", root=tmp_path).cluster_name == "other"
    environ["SLURM_CLUSTER_NAME"] = "lumi"
    assert gather_evidence(environ=environ, hostname="n", root=tmp_path).cluster_name == "lumi"


def test_a_dead_file_system_costs_the_deadline_and_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alive").mkdir()
    release = threading.Event()
    real = os.path.lexists

    def lexists(path: Any) -> bool:
        if str(path).endswith("dead"):
            release.wait(20)
        return real(path)

    monkeypatch.setattr(evidence_module.os.path, "lexists", lexists)
    try:
        began = time.monotonic()
        assert existing(["/alive", "/dead"], root=tmp_path, deadline_s=0.4) == ("/alive",)
        assert time.monotonic() - began < 10
    finally:
        release.set()


def test_a_controller_that_does_not_answer_is_no_evidence(tmp_path: Path) -> None:
    """The scheduler is really asked here: by a program that fails, as scontrol does where no controller runs."""
    tool = tmp_path / "bin"
    tool.mkdir()
    for name, code in (("sbatch", 0), ("scontrol", 1)):
        (tool / name).write_text(f"#!/bin/sh\necho 'slurm_load_ctl_conf error: Unable to contact' >&2\nexit {code}\n")
        (tool / name).chmod(0o755)
    environ = {"PATH": f"{tool}:/usr/bin:/bin", "SLURM_CONF_SERVER": "ctl"}
    seen = gather_evidence(environ=environ, hostname="n", root=tmp_path, ask_scheduler=True)
    assert "slurm" in seen.schedulers
    assert seen.cluster_name is None
    (tool / "scontrol").write_text("#!/bin/sh\necho 'ClusterName             = lumi'\n")
    assert gather_evidence(environ=environ, hostname="n", root=tmp_path, ask_scheduler=True).cluster_name == "lumi"


def test_this_machine_is_looked_at_without_asking_anybody(tmp_path: Path) -> None:
    detection = detect_site({"user": tmp_path}, environ={"PATH": "/usr/bin:/bin"})
    assert detection.site is None
    assert detection.evidence.hostname
    assert detection.name.startswith(("generic-", "workstation"))


def test_a_site_of_the_user_is_recognised_by_its_own_signs(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    text = 'name = "ours"\nextends = "generic-slurm"\n[detect]\nvariables = { OUR_CLUSTER = "blue.*" }\n'
    (tmp_path / "sites/ours.toml").write_text(text)
    assert detect(Evidence(variables={"OUR_CLUSTER": "blue7"}), catalog_signs({"user": tmp_path})).site == "ours"


def test_an_overlay_without_signs_keeps_those_of_the_catalog(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites/lumi.toml").write_text('extends = "lumi"\nhardware = "cray-ex-mi250x"\n')
    assert detect(Evidence(cluster_name="lumi"), catalog_signs({"user": tmp_path})).site == "lumi"


def test_a_broken_file_of_the_user_does_not_break_detection(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites/broken.toml").write_text("[detect\n")
    assert detect(Evidence(cluster_name="lumi"), catalog_signs({"user": tmp_path})).site == "lumi"
