"""What of a user's secrets can be read in a bug report, and what can hang or fill one: nothing."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import tarfile
import urllib.parse
import zipfile
from pathlib import Path

import pytest

from attacks.record import record
from unit.cli.typed import in_process, script, windlass
from windlass.diagnose.bugreport import gather
from windlass.diagnose.bugreport.about import MAX_LOG_BYTES, MAX_NODES
from windlass.model.secrets import MASK
from windlass.plan.render.variables import SECRETS_FILE
from windlass.run.bundle import scrubber

S = "Zq7xK2vB9\"mW4'tR8y"
"""The secret of every case here, with both kinds of quotes."""
CORE = "Zq7xK2vB9"
KEY_LINES = [base64.b64encode(bytes(range(n, n + 48))).decode() for n in range(8)]
PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\n" + "\n".join(KEY_LINES) + "\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose command line and variables hold secrets."""
    cwd = tmp_path_factory.mktemp("run")
    script(cwd)
    words = (
        "--env",
        f"WANDB_API_KEY={S}",
        "--env",
        f"PLAIN={S}",
        "place.py",
        "--hf-token",
        S,
        f"--url=ftp://me:{S}@h/",
    )
    assert windlass("run", "--run-dir", "done", *words, cwd=cwd).code == 0
    return cwd / "done"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "runs" / "train-1"))


def report(run: Path, **env: str) -> dict[str, str]:
    """Texts of the report of this run, made with these variables."""
    cwd = run.parents[1]
    done = in_process(
        "bugreport", str(run), "--without", "doctor", "-o", "b.tar.gz", cwd=cwd, env={"PATH": "/nowhere", **env}
    )
    assert done.code == 0, done.text
    assert (cwd / "b.tar.gz").stat().st_mode & 0o077 == 0
    return {**texts_of(cwd / "b.tar.gz"), "terminal": done.text}


def texts_of(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = ((entry.name.partition("/")[2], archive.extractfile(entry)) for entry in archive.getmembers())
        return {name: file.read().decode("utf-8", "surrogateescape") for name, file in found if file}


def forms(secret: str) -> list[str]:
    """How a program may say it in a log."""
    return [
        secret,
        json.dumps({"auth": secret}),
        repr(secret),
        urllib.parse.quote(secret),
        base64.b64encode(secret.encode()).decode(),
        "'" + secret.replace("'", "'\\''") + "'",
    ]


def shows(text: str) -> bool:
    return CORE in text or base64.b64encode(S.encode()).decode() in text or any(line in text for line in KEY_LINES)


def test_a_secret_of_the_environment_is_nowhere_in_whatever_form_a_rank_said_it(run: Path) -> None:
    log = next((run / "out").iterdir())
    with log.open("a") as file:
        file.write("".join(f"0: said {form}\n" for form in forms(S)))
    (run / "launcher.log").write_text(f"srun: error: cannot log in with {S}\n")
    (run.parents[1] / "no-config").mkdir()
    (run.parents[1] / "no-config" / "config.toml").write_text(f"account = {json.dumps(S)}\n")
    files = report(run, FIGSHARE_TOKEN=S, SLURM_JWT=S, HOME=str(run.parents[1]))
    assert not [name for name, text in files.items() if shows(text)]
    assert MASK in files[f"run/out/{log.name}"] and MASK in files["run/launcher.log"]
    assert "FIGSHARE_TOKEN" not in files["environment.txt"], "nor is its name of use to anybody"
    assert f"SLURM_JWT={MASK}" in files["environment.txt"]
    assert str(run.parents[1]) not in files["run/plan.json"], "the home folder is shown as ~"
    record("secrets in a bug report", expected="none", seen="none", files=len(files))


def test_secrets_that_ranks_have_still_to_get_are_known(run: Path) -> None:
    (run / "secrets.sh").write_text(f"# kept\nw_secret_env_X='{CORE}-of-a-run'\nw_secret_word_1='--pw={CORE}-word'\n")
    next((run / "out").iterdir()).write_text(f"0: {CORE}-of-a-run {CORE}-word\n")
    files = report(run)
    assert not [name for name, text in files.items() if shows(text)]
    assert not [name for name in files if name.endswith("secrets.sh")]


@pytest.mark.parametrize("cut", [0, 40, 150, 300])
def test_a_private_key_that_the_cut_of_a_log_goes_through_stays_hidden(run: Path, cut: int) -> None:
    rest = "x" * 80 + "\n"
    text = PEM + rest * (MAX_LOG_BYTES // len(rest) + 1)
    keep = len(PEM) - cut  # so much of the key is before the cut
    log = next((run / "out").iterdir())
    log.write_text(text[: MAX_LOG_BYTES + keep] if cut else PEM)
    files = report(run)
    assert not [name for name, found in files.items() if any(line in found for line in KEY_LINES)]
    assert MASK in files[f"run/out/{log.name}"]


def test_a_key_of_several_lines_is_hidden_line_by_line() -> None:
    labelled = "\n".join(f"[3]: {line}" for line in PEM.splitlines())
    cleaned = scrubber({"DEPLOY_KEY": PEM}).clean(labelled)
    assert not any(line in cleaned for line in KEY_LINES)


def test_links_and_pipes_in_a_run_folder_are_not_followed(run: Path) -> None:
    elsewhere = run.parents[1] / "id_rsa"
    elsewhere.write_text(f"{CORE} of another file")
    (run / "launcher.log").unlink(missing_ok=True)
    (run / "launcher.log").symlink_to(elsewhere)
    (run / "out" / "linked").symlink_to(elsewhere)
    os.mkfifo(run / "agents.log")
    (run / SECRETS_FILE).unlink(missing_ok=True)
    os.mkfifo(run / SECRETS_FILE)
    files = report(run)
    assert not [name for name, text in files.items() if shows(text)]
    assert "agents.log" in files["SUMMARY.txt"] and "not a plain file" in files["SUMMARY.txt"]


def test_a_linked_folder_of_logs_is_not_entered(run: Path) -> None:
    private = run.parents[1] / "private"
    (run / "out").rename(private)
    for file in private.iterdir():
        file.write_text(f"0: {CORE} of another file\n")
    (run / "out").symlink_to(private)
    files = report(run)
    assert not [name for name, text in files.items() if shows(text)]
    assert "link" in files["SUMMARY.txt"]
    record("a linked `out` folder in a bug report", expected="not packed", seen="not packed")


def test_a_report_of_endless_logs_of_many_nodes_stays_small(run: Path) -> None:
    for number in range(3 * MAX_NODES):
        (run / "out" / f"n{number:04d}").write_bytes(os.urandom(MAX_LOG_BYTES) * 4)
    files = report(run)
    assert sum(len(text) for text in files.values()) < 2 * gather.MAX_BYTES
    assert (run.parents[1] / "b.tar.gz").stat().st_size < gather.MAX_BYTES
    assert "more nodes" in files["SUMMARY.txt"]


def test_a_tool_that_hangs_and_one_that_shouts_cost_their_own_lines_alone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.diagnose.bugreport.about.TOOL_S", 1.0)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("srun", "exec sleep 600"), ("flux", "yes"), ("mpiexec", "exit 3")):
        (tools / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin; {text}\n")
        (tools / name).chmod(0o755)
    files = report(run, PATH=str(tools))
    assert "srun gave no answer within 1 s" in files["tools.txt"]
    assert len(files["tools.txt"]) < 4_000


def test_a_damaged_plan_and_a_damaged_configuration_are_said_and_the_rest_is_there(run: Path) -> None:
    (run / "plan.json").write_text('{"version": 1, ')
    (run.parents[1] / "no-config").mkdir()
    (run.parents[1] / "no-config" / "config.toml").write_text("account = [")
    files = report(run)
    assert "plan.json" in files["SUMMARY.txt"] and "not TOML" in files["SUMMARY.txt"]
    assert "version.txt" in files and "run/rank.sh" in files


def test_a_zip_holds_the_same(run: Path) -> None:
    cwd = run.parents[1]
    done = in_process(
        "bugreport", str(run), "--without", "doctor", "--without", "logs", "-o", "b.zip", "--json", cwd=cwd
    )
    assert done.code == 0, done.text
    said = json.loads(done.stdout)
    with zipfile.ZipFile(io.BytesIO((cwd / "b.zip").read_bytes())) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
    assert names == {*said["files"], "SUMMARY.txt"}
    assert (
        not [name for name in names if name.startswith("run/out")] and said["left_out"]["run/logs"] == "--without logs"
    )


def test_a_run_that_is_none_is_an_error_and_none_at_all_is_not(tmp_path: Path) -> None:
    env = {"PATH": "/nowhere"}
    wrong = in_process("bugreport", "nothing", "--without", "doctor", cwd=tmp_path, env=env)
    assert wrong.code == 2 and "hint" in wrong.stderr
    fine = in_process("bugreport", "--without", "doctor", "-o", "b.tar.gz", cwd=tmp_path, env=env)
    assert fine.code == 0 and "no run was found in" in fine.stdout
    nowhere = in_process("bugreport", "--without", "doctor", "-o", "/nowhere/b.zip", cwd=tmp_path, env=env)
    assert nowhere.code == 2 and "-o FILE" in nowhere.stderr


def test_the_quick_checks_are_inside(tmp_path: Path) -> None:
    done = windlass("bugreport", "-o", "b.tar.gz", cwd=tmp_path, env={"SOME_TOKEN": S}, timeout_s=120)
    assert done.code == 0, done.text
    files = texts_of(tmp_path / "b.tar.gz")
    assert "node" in files["doctor.txt"] and not [name for name, text in files.items() if shows(text)]
