"""windlass submit, as far as it goes without a scheduler: scripts, refusals, and what a failure leaves behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import captured
from looping import each
from unit.cli.typed import in_process, script

SECRET = "correct-horse-battery"


def _fake_sbatch(folder: Path, text: str) -> dict[str, str]:
    """A scheduler that only answers: what is handed to it is tested with a real one in tests/cluster."""
    tool = folder / "bin" / "sbatch"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)
    return {"PATH": f"{tool.parent}:/usr/bin:/bin"}


LUMI = ("submit", "--site", "lumi", "--account", "project_1", "--time", "30")


@each("form", [(), ("--standalone",)])
@each("site", ["lumi", "aurora", "tuolumne"])
def test_a_dry_run_prints_a_script_that_a_shell_accepts_and_writes_nothing(
    tmp_path: Path, site: str, form: tuple[str, ...]
) -> None:
    script(tmp_path)
    words = ("submit", "--dry-run", *form, "--site", site, "--account", "abc", "--time", "1h", "--nodes", "2")
    ended = in_process(*words, "place.py", "it's", "$(id)", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    checked = subprocess.run(["bash", "-n"], input=ended.stdout, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "# Why these directives:" in ended.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "place.py"]


def test_a_dry_run_warns_as_a_submission_does_and_names_modules_and_needs(tmp_path: Path) -> None:
    env = _fake_sbatch(tmp_path, "echo 'Submitted batch job 4711'")
    words = ("--nodes", "2", "--module", "PrgEnv-gnu", "--", "true")
    printed = in_process(*LUMI, "--dry-run", *words, cwd=tmp_path, env=env)
    submitted = in_process(*LUMI, *words, cwd=tmp_path, env=env)
    said = [line for line in submitted.stderr.splitlines() if not line.startswith("windlass: true is job")]
    assert said == printed.stderr.splitlines() and "warning" in printed.stderr and "note" in printed.stderr
    for part in ("sbatch FILE", "module load PrgEnv-gnu", "#   srun", "--nodes=2", "tcp-fallback"):
        assert part in printed.stdout


def test_a_printed_script_whose_plan_was_edited_is_refused(tmp_path: Path) -> None:
    printed = in_process(*LUMI, "--dry-run", "--", "true", cwd=tmp_path).stdout
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    for text, said in ((printed, "slurm job"), (printed.replace('"name": "true"', '"name": "false"'), "--signed-by")):
        done = subprocess.run(["bash"], input=text, capture_output=True, text=True, cwd=tmp_path, env=clean)
        assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (tmp_path / "runs").exists()


def test_secrets_are_in_no_script(tmp_path: Path) -> None:
    script(tmp_path)
    for form in ((), ("--standalone",)):
        words = (*LUMI, "--dry-run", *form, "--env", f"A_TOKEN={SECRET}", "place.py", "--password", SECRET)
        assert SECRET not in in_process(*words, cwd=tmp_path).text


def test_a_job_that_was_taken_has_its_id_script_plan_and_secrets(tmp_path: Path) -> None:
    env = _fake_sbatch(tmp_path, "echo 'Submitted batch job 4711'")
    ended = in_process(*LUMI, "--run-dir", "r", "--env", f"A_TOKEN={SECRET}", "--", "true", cwd=tmp_path, env=env)
    assert ended.code == 0, ended.stderr
    assert ended.stdout == "4711\n"
    run = tmp_path / "r"
    assert (run / "job_id").read_text() == "4711\n"
    assert SECRET in (run / "secrets.sh").read_text()
    assert (run / "secrets.sh").stat().st_mode & 0o777 == 0o600
    assert SECRET not in (run / "plan.json").read_text() + (run / "batch.sh").read_text()


@each(("reason", "said"), [("PartitionNodeLimit", True), ("Resources", False)])
def test_a_job_that_will_never_start_is_told_after_it_was_submitted(tmp_path: Path, reason: str, said: bool) -> None:
    folder = tmp_path / reason
    folder.mkdir()
    env = _fake_sbatch(folder, "echo 'Submitted batch job 4711'")
    asked = folder / "bin" / "scontrol"
    asked.write_text(
        "#!/bin/sh\n[ -e asked ] || { touch asked; echo JobId=4711 JobState=PENDING Reason=None; exit; }\n"
        f"echo JobId=4711 JobState=PENDING Reason={reason}\n"
    )
    asked.chmod(0o755)
    ended = in_process(*LUMI, "--", "true", cwd=folder, env=env)
    assert (ended.code, ended.stdout) == (0, "4711\n"), "the job is in the queue all the same"
    assert (f"never-starts: job 4711 will not start: {reason}" in ended.stderr) is said, ended.stderr
    assert ("scancel 4711" in ended.stderr) is said


DENIED = {"occurred": True, "severity": 0, "type": "alloc", "note": 'alloc denied due to type="unsatisfiable"'}
UNSATISFIABLE = json.dumps({"id": 1, "state": "INACTIVE", "result": "FAILED", "exception": DENIED})


@each(
    ("site", "tools", "reason"),
    [
        ("polaris", {"qsub": "51.head", "qstat": captured.text("openpbs/qstat_f_json_too_many.out")}, "Can Never Run"),
        ("tuolumne", {"flux": UNSATISFIABLE}, "unsatisfiable"),
    ],
)
def test_pbs_and_flux_jobs_that_can_never_start_are_told(
    tmp_path: Path, site: str, tools: dict[str, str], reason: str
) -> None:
    (tmp_path / "bin").mkdir()
    for name, answer in tools.items():
        (tmp_path / "bin" / f"{name}.said").write_text(answer)
        first = '[ "$1" = batch ] && echo f123 && exit\n' if name == "flux" else ""
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{first}cat {tmp_path}/bin/{name}.said\n")
        (tmp_path / "bin" / name).chmod(0o755)
    words = ("submit", "--site", site, "--account", "a", "--time", "30", "--", "true")
    ended = in_process(*words, cwd=tmp_path, env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    assert ended.code == 0, ended.stderr
    assert "never-starts: job" in ended.stderr and reason in ended.stderr


def test_a_refused_job_is_told_and_its_secrets_are_forgotten(tmp_path: Path) -> None:
    env = _fake_sbatch(tmp_path, "echo 'sbatch: error: Invalid account' >&2; exit 1")
    ended = in_process(*LUMI, "--run-dir", "r", "--env", f"A_TOKEN={SECRET}", "--", "true", cwd=tmp_path, env=env)
    assert ended.code != 0
    assert "account" in ended.stderr
    assert not (tmp_path / "r/secrets.sh").exists()


@each("words", [("--site", "frontier"), ("--site", "workstation"), ("--site", "nowhere")])
def test_a_wrong_request_leaves_the_folder_that_was_named_as_it_is(tmp_path: Path, words: tuple[str, ...]) -> None:
    """It once removed it, with everything that was in it before."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "results.csv").write_text("years of work")
    ended = in_process("submit", *words, "--run-dir", "precious", "--", "true", cwd=tmp_path)
    assert ended.code == 2
    assert [path.name for path in precious.iterdir()] == ["results.csv"]


def test_a_machine_without_a_scheduler_says_what_to_use(tmp_path: Path) -> None:
    ended = in_process("submit", "--site", "workstation", "--", "true", cwd=tmp_path)
    assert ended.code == 2
    assert "windlass run" in ended.stderr


def test_a_missing_account_is_asked_for(tmp_path: Path) -> None:
    ended = in_process("submit", "--site", "frontier", "--", "true", cwd=tmp_path)
    assert ended.code == 2
    assert "--account" in ended.stderr


def test_away_from_the_machine_nothing_is_made_and_the_place_to_submit_named(tmp_path: Path) -> None:
    ended = in_process(*LUMI, "--run-dir", "r", "--", "true", cwd=tmp_path, env={"PATH": "/nowhere"})
    assert ended.code == 3
    assert "sbatch is not installed here" in ended.stderr
    assert "--dry-run" in ended.stderr
    assert not (tmp_path / "r").exists()


def test_qsub_is_found_where_pbs_says_that_it_is_installed(tmp_path: Path) -> None:
    tool = tmp_path / "pbs" / "bin" / "qsub"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho 12.head\n")
    tool.chmod(0o755)
    conf = tmp_path / "pbs.conf"
    words = ("submit", "--site", "generic-pbs", "--nodes", "1", "--ranks-per-node", "1")
    env = {"PATH": "/usr/bin:/bin", "PBS_CONF_FILE": str(conf)}
    for place, code in ((tmp_path / "elsewhere", 3), (tool.parent.parent, 0)):
        conf.write_text(f"PBS_SERVER=head\nPBS_EXEC={place}\n")
        ended = in_process(*words, "--run-dir", f"r{code}", "--", "true", cwd=tmp_path, env=env)
        assert ended.code == code, ended.stderr
        assert (tmp_path / f"r{code}").exists() == (code == 0)
        assert code == 0 or f"not in {place}/bin either" in ended.stderr
