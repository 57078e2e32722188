"""The PBS stand-in's scheduler and execution daemon for one job: waits for nodes, runs the script, notes its end.

Started by qsub in a session of its own; ends with the job, at the latest after `tasks.LONGEST_RUN_S`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pbs_state as pbs
from tasks import LONGEST_RUN_S, Task, enter, kill_group

_GRACE_S = float(os.environ.get("STANDIN_GRACE", "2"))
"""Between TERM and KILL; the real one takes 10 to 21 s."""
_RUNNING, _DONE, _FAILED, _DELETED, _WALLTIME = 42, 92, 93, 91, -29


def main(job_id: str) -> None:
    (pbs.folder() / "pids" / job_id).write_text(str(os.getpid()))
    deadline = time.monotonic() + LONGEST_RUN_S
    while time.monotonic() < deadline:
        hosts = try_start(job_id)
        if hosts is not None:
            execute(job_id, hosts, deadline)
            return
        job = pbs.read_job(job_id)
        if job is None or job["attributes"]["job_state"] != "Q":
            return
        time.sleep(0.1)


def try_start(job_id: str) -> list[str] | None:
    """Hosts of the chunks where the job could start; says why it never can in the comment, as the real one does."""
    with pbs.locked():
        job = pbs.read_job(job_id)
        if job is None or job["attributes"]["job_state"] != "Q":
            return None
        chunks = pbs.parse_select(job["attributes"]["Resource_List"]["select"])
        arrangement = job["attributes"]["Resource_List"]["place"]
        if pbs.place(chunks, arrangement, {}) is None:
            job["attributes"]["comment"] = "Can Never Run: Not enough total nodes available"
            pbs.write_job(job)
            return None
        hosts = pbs.place(chunks, arrangement, busy(job_id))
        if hosts is None:
            job["attributes"]["comment"] = "Not Running: Insufficient amount of resource: ncpus"
            pbs.write_job(job)
            return None
        short = [host.split(".", 1)[0] for host in hosts]
        vnodes = "+".join(f"({name}:ncpus={chunk['ncpus']})" for name, chunk in zip(short, chunks, strict=True))
        job["attributes"] |= {
            "job_state": "R",
            "substate": _RUNNING,
            "exec_host": "+".join(
                f"{name}/0" + (f"*{chunk['ncpus']}" if chunk["ncpus"] != "1" else "")
                for name, chunk in zip(short, chunks, strict=True)
            ),
            "exec_vnode": vnodes,
            "stime": pbs.stamp(),
            "run_count": 1,
            "comment": f"Job run at {time.strftime('%a %b %d at %H:%M')} on {vnodes}",
        }
        pbs.write_job(job)
        return hosts


def busy(job_id: str) -> dict[str, int]:
    used: dict[str, int] = {}
    for job in pbs.all_jobs():
        attributes = job["attributes"]
        if job["id"] == job_id or attributes["job_state"] not in {"R", "E"}:
            continue
        names = [part.split("/", 1)[0] for part in attributes["exec_host"].split("+")]
        for name, chunk in zip(names, pbs.parse_select(attributes["Resource_List"]["select"]), strict=True):
            full = next(host for host in pbs.nodes() if host.split(".", 1)[0] == name)
            used[full] = used.get(full, 0) + int(chunk["ncpus"])
    return used


def execute(job_id: str, hosts: list[str], deadline: float) -> None:
    job = pbs.read_job(job_id)
    assert job is not None
    attributes = job["attributes"]
    chunks = pbs.parse_select(attributes["Resource_List"]["select"])
    nodefile = pbs.folder() / "aux" / job_id
    lines = [host for host, chunk in zip(hosts, chunks, strict=True) for _ in range(int(chunk.get("mpiprocs", "1")))]
    nodefile.write_text("".join(f"{line}\n" for line in lines))
    env = environment(job, nodefile, chunks[0])
    Path(env["TMPDIR"]).mkdir(parents=True, exist_ok=True)
    spool = {name: pbs.folder() / "spool" / f"{job_id}.{end}" for name, end in (("o", "OU"), ("e", "ER"))}
    direct = "d" in attributes["Keep_Files"]
    target = {"o": attributes["Output_Path"].split(":", 1)[1], "e": attributes["Error_Path"].split(":", 1)[1]}
    joined = attributes["Join_Path"] == "oe"
    os.umask(job["umask"])
    with (
        Path(target["o"] if direct else spool["o"]).open("wb") as out,
        Path(os.devnull if joined else target["e"] if direct else spool["e"]).open("wb") as err,
    ):
        child = start_shell(job, env, out, out if joined else err, hosts[0])
        ended = wait(job_id, child, deadline)
    if not direct:
        for name in "o" if joined else "oe":
            deliver(spool[name], Path(target[name]))
    finish(job_id, child.returncode, ended)


def environment(job: dict[str, Any], nodefile: Path, chunk: dict[str, str]) -> dict[str, str]:
    attributes = job["attributes"]
    given = {name: str(value) for name, value in attributes["Variable_List"].items()}
    user = pwd.getpwuid(os.getuid()).pw_name
    threads = chunk.get("ompthreads", chunk["ncpus"])
    return given | {
        "ENVIRONMENT": "BATCH",
        "HOME": given["PBS_O_HOME"],
        "LOGNAME": user,
        "NCPUS": chunk["ncpus"],
        "OMP_NUM_THREADS": threads,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBCOOKIE": "00000000000000000000000000000000",
        "PBS_JOBDIR": given["PBS_O_HOME"],
        "PBS_JOBID": job["id"],
        "PBS_JOBNAME": attributes["Job_Name"],
        "PBS_MOMPORT": "15003",
        "PBS_NODEFILE": str(nodefile),
        "PBS_NODENUM": "0",
        "PBS_QUEUE": attributes["queue"],
        "PBS_TASKNUM": "1",
        "SHELL": "/bin/bash",
        "TMPDIR": str(pbs.folder() / "tmp" / f"pbs.{job['id']}"),
        "USER": user,
        **{name: value for name, value in os.environ.items() if name.startswith(("STANDIN_", "WLTEST_"))},
    }


def start_shell(job: dict[str, Any], env: dict[str, str], out: Any, err: Any, host: str) -> subprocess.Popen[bytes]:
    """A login shell that is told the script's path through a pipe; `qsub -- command` has no shell at all."""
    common: dict[str, Any] = {
        "env": env,
        "cwd": env["HOME"],
        "stdout": out,
        "stderr": err,
        "start_new_session": True,
        "preexec_fn": enter(Task(0, 0, 0, host, env)),
    }
    if job["direct"] is not None:
        return subprocess.Popen(job["direct"], stdin=subprocess.DEVNULL, **common)
    script = pbs.folder() / "scripts" / f"{job['id']}.SC"
    script.chmod(0o700)
    child = subprocess.Popen(["-bash"], executable="/bin/bash", stdin=subprocess.PIPE, **common)
    assert child.stdin
    child.stdin.write(f"'{script}'\n".encode())
    child.stdin.close()
    return child


def wait(job_id: str, child: subprocess.Popen[bytes], deadline: float) -> str:
    """`ended`, `deleted` or `walltime`. TERM first, KILL after the grace."""
    job = pbs.read_job(job_id)
    assert job is not None
    limit = time.monotonic() + (pbs.seconds(job["attributes"]["Resource_List"]["walltime"]) or 3600)
    why, kill_at = "ended", 0.0
    while child.poll() is None:
        now = time.monotonic()
        if not kill_at and ((pbs.folder() / "deleted" / job_id).exists() or now > min(limit, deadline)):
            why = "deleted" if (pbs.folder() / "deleted" / job_id).exists() else "walltime"
            kill_session(child.pid, signal.SIGTERM)
            kill_at = now + _GRACE_S
        elif kill_at and now > kill_at:
            kill_session(child.pid, signal.SIGKILL)
        time.sleep(0.05)
    kill_session(child.pid, signal.SIGKILL)
    return why


def kill_session(session: int, number: int) -> None:
    """Every process of the session, in whatever group; what made a session of its own is not reached, as in PBS."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.name), number)
    kill_group(session, number)


def deliver(spooled: Path, target: Path) -> None:
    try:
        target.write_bytes(spooled.read_bytes())
    except OSError:
        return  # a path that cannot be written: the real one leaves the file undelivered
    spooled.unlink()


def finish(job_id: str, code: int, why: str) -> None:
    status = _WALLTIME if why == "walltime" else 256 - code if code < 0 else code
    substate = _DELETED if why == "deleted" else _DONE if status == 0 else _FAILED
    words = {
        "deleted": f"terminated by {os.environ.get('USER', 'user')}@{pbs.FULL}",
        "walltime": "exceeded resource walltime",
    }
    said = words.get(why, "finished" if status == 0 else "failed")
    job = pbs.read_job(job_id)
    assert job is not None
    pbs.change_job(
        job_id,
        job_state="F",
        substate=substate,
        Exit_status=status,
        Stageout_status=1,
        obittime=pbs.stamp(),
        jobdir=job["attributes"]["Variable_List"]["PBS_O_HOME"],
        history_timestamp=int(time.time()),
        resources_used={
            "cpupercent": 0,
            "cput": "00:00:00",
            "mem": "0kb",
            "ncpus": 1,
            "vmem": "0kb",
            "walltime": "00:00:00",
        },
        comment=f"{job['attributes']['comment']} and {said}",
    )


if __name__ == "__main__":
    main(sys.argv[1])
