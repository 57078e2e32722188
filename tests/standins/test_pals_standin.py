"""The PALS stand-in: the documented options and no others, labels, variables, and one failure that ends all."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import leftovers
from standins.sites import Site, pbs_site
from waiting import wait_until

HOSTS = ("x4000c0s0b0n0.hsn.example", "x4000c0s1b0n0.hsn.example")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with pbs_site(tmp_path / "site", HOSTS) as found:
        nodefile = tmp_path / "nodefile"
        nodefile.write_text("".join(f"{host}\n" for host in HOSTS))
        found.env["PBS_NODEFILE"] = str(nodefile)
        yield found
    left = leftovers.look_until_clean(os.environ[leftovers.MARK_VARIABLE], tmp_path, patience_s=20)
    assert not left, left.text()


def start(site: Site, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["mpiexec", *words], env=site.env, cwd=site.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def run(site: Site, *words: str) -> tuple[int, list[str], list[str]]:
    child = start(site, *words)
    out, err = child.communicate(timeout=60)
    return child.returncode, sorted(out.splitlines()), err.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ("-n", "4", "-ppn", "2"),
        ("--np", "4", "--ppn", "2"),
        ("-n", "4", "--ppn=2", "--cpu-bind", "list:0-1:2-3", "--envall", "--pmi=pmix", "--no-vni"),
        ("-n", "4", "-ppn", "2", "-l", "--line-buffer", "--cpu-bind=depth", "--depth=2", "--genvall", "--env", "A=b"),
        ("-n", "4", "-ppn", "2", "--cpu-bind=verbose,list:0:1", "--mem-bind=list:0:1", "--gpu-bind=list:0.0:0.1"),
    ],
)
def test_lines_from_the_sites_pages_run(site: Site, words: Sequence[str]) -> None:
    code, out, err = run(site, *words, "sh", "-c", "echo $PALS_RANKID")
    assert (code, err) == (0, [])
    assert [line.split()[-1] for line in out] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    "words",
    [
        ("--bind-to", "none"),
        ("--map-by", "ppr:2:node"),
        ("--npernode", "2"),
        ("--tag-output",),
        ("-n", "4", "--ppn", "2", "--cpu-bind=list:0"),
        ("-n", "9", "--ppn", "2"),
        (),
    ],
)
def test_words_of_other_launchers_and_contradictions_are_refused(site: Site, words: Sequence[str]) -> None:
    code, out, err = run(site, *words, *(["true"] if words else []))
    assert code != 0
    assert not out
    assert err[0].startswith("mpiexec: ")


def test_ranks_have_labels_variables_and_hosts_in_blocks(site: Site) -> None:
    script = "echo $PALS_RANKID $PALS_LOCAL_RANKID $PALS_NODEID $PALS_LOCAL_SIZE $PMI_RANK $PMI_SIZE"
    code, out, _ = run(site, "-n", "4", "--ppn", "2", "--label", "sh", "-c", script)
    assert code == 0
    assert out == [f"{HOSTS[rank // 2]} {rank}: {rank} {rank % 2} {rank // 2} 2 {rank} 4" for rank in range(4)]


def test_with_pmix_there_is_no_size_variable(site: Site) -> None:
    _, out, _ = run(site, "-n", "2", "--ppn", "1", "--pmi=pmix", "sh", "-c", "echo $PMIX_RANK ${PMI_SIZE-unset}")
    assert out == ["0 unset", "1 unset"]


@pytest.mark.parametrize(("how", "said"), [("exit 3", "exited with code 3"), ("kill -9 $$", "died from signal 9")])
def test_a_failing_rank_ends_the_others_and_is_named_first(site: Site, how: str, said: str) -> None:
    begun = time.monotonic()
    script = f"if [ $PALS_RANKID = 3 ]; then {how}; fi; exec sleep 50"
    code, _, err = run(site, "-n", "4", "--ppn", "2", "--label", "sh", "-c", script)
    assert time.monotonic() - begun < 30
    assert code == 128 + signal.SIGTERM
    assert err[0] == f"{HOSTS[1]}: rank 3 {said}"
    assert err[1].endswith("died from signal 15")


def test_a_killed_launcher_leaves_no_rank(site: Site) -> None:
    child = start(site, "-n", "2", "--ppn", "1", "sh", "-c", "touch started.$PALS_RANKID; exec sleep 50")
    wait_until(lambda: len(list(site.home.glob("started.*"))) == 2, timeout_s=20, what="both ranks run")
    child.kill()
    child.communicate(timeout=20)


def test_outside_of_a_job_it_says_so(site: Site) -> None:
    del site.env["PBS_NODEFILE"]
    code, _, err = run(site, "-n", "1", "true")
    assert code != 0
    assert "not inside a PBS job" in err[0]
