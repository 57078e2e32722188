"""Profile a few ranks: the command in front of theirs, or the settings of the start-up hook. Pure.

Profiling every rank of a large job costs too much and gives the same result everywhere. Therefore the user chooses
ranks.
"""

from __future__ import annotations

from windlass.errors import UsageError, unknown_name
from windlass.model.plan import Plan
from windlass.model.request import Request

PROFILE_FOLDER = "profile"
PROFILE_VARIABLE = "WINDLASS_PROFILE"
"""Settings for the start-up hook of a rank: steps, and the directory for its results."""
_BASE = f'"$WINDLASS_RUN_DIR/{PROFILE_FOLDER}/rank-$w_rank"'
_COMMANDS = {
    "nsys": f"nsys profile --trace=cuda,nvtx,osrt --sample=none --force-overwrite=true --output={_BASE}",
    "rocprof": f"rocprof --hip-trace --stats -o {_BASE}.csv",
    "rocprofv3": f"rocprofv3 --hip-trace --kernel-trace --stats -d {_BASE} --",
    "unitrace": f"unitrace --chrome-kernel-logging --chrome-call-logging --output {_BASE}",
    "py-spy": f"py-spy record --subprocesses --nonblocking --rate 100 --output {_BASE}.svg --",
}
PROFILERS = ("torch", *_COMMANDS)


def check_profile(request: Request, world_size: int) -> None:
    """Raise `UsageError` for an unknown profiler or for ranks that the run does not have."""
    if request.profile is None:
        return
    if request.profile not in PROFILERS:
        raise unknown_name("profiler", request.profile, PROFILERS)
    ranks = profiled_ranks(request)
    if max(ranks) >= world_size:
        raise UsageError(
            f"--profile {request.profile}:{request.profile_ranks}: there are ranks 0 to {world_size - 1}",
            hint="choose ranks in this range",
        )


def profiled_ranks(request: Request) -> tuple[int, ...]:
    return tuple(int(rank) for rank in request.profile_ranks.split(","))


def profile_lines(plan: Plan) -> list[str]:
    """Lines of the rank script after the command is set and before the container wraps it."""
    request = plan.request
    if request.profile is None:
        return []
    ranks = "|".join(str(rank) for rank in profiled_ranks(request))
    if request.profile == "torch":
        what = f'export {PROFILE_VARIABLE}="{request.profile_steps}:$WINDLASS_RUN_DIR/{PROFILE_FOLDER}"'
    else:
        what = f'set -- {_COMMANDS[request.profile]} "$@"'
    return [
        "",
        "# A profile of the chosen ranks alone.",
        "case $w_rank in",
        f'  {ranks}) mkdir -p "$WINDLASS_RUN_DIR/{PROFILE_FOLDER}"; {what} ;;',
        "esac",
    ]
