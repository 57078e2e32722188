"""Examples of every command, as its `--help` prints them. Each is a line that its parser takes; tests try them."""

from __future__ import annotations

_RUN = "train-20261116-093000"
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "run": (
        ("windlass run train.py --lr 0.1", "one rank per device of this machine or allocation"),
        ("windlass run --ranks-per-node 2 --show all train.py", "two ranks a node, all of them on the terminal"),
        ("windlass run --restarts 3 --watch train.py", "go on from the last snapshot when a rank dies; a live screen"),
        ("windlass run --container image.sif -m torch.utils.collect_env", "a module, inside a container"),
        ("windlass run --env NCCL_DEBUG=INFO -- ./all_reduce_perf -b 8 -e 1G", "any program"),
    ),
    "plan": (
        ("windlass plan train.py", "what would run here"),
        ("windlass plan --site lumi --nodes 2 --explain", "on a machine of the catalog, with the reason of each line"),
        ("windlass plan --site aurora --nodes 4 --picture node.svg", "and the map of a node as a picture"),
        ("windlass plan --json train.py", "for `windlass diff` and `windlass run --plan`"),
    ),
    "submit": (
        ("windlass submit --account ABC --time 2h --nodes 4 train.py --lr 0.1", "hand it to the scheduler"),
        ("windlass submit --dry-run --nodes 4 --time 30 train.py", "print the batch script"),
        ("windlass submit --until-done --time 12h train.py", "submit it again until it is done"),
    ),
    "alloc": (
        ("windlass alloc --nodes 2 --time 1h", "a shell in an allocation"),
        ("windlass alloc --dry-run --nodes 2 --time 1h", "print the command"),
    ),
    "explain": (
        ("windlass explain NCCL_SOCKET_IFNAME --site frontier", "why a variable is there, from where, checked when"),
        ("windlass explain --cpu-bind --site lumi", "why an option of the launcher is there"),
    ),
    "diff": (("windlass diff a.json b.json", "two saved plans, or two run folders"),),
    "sites": (
        ("windlass sites list", "the catalog"),
        ("windlass sites show lumi", "all that is known of a machine, with sources"),
        ("windlass sites detect", "which machine this is, and by which evidence"),
        ("windlass sites check mysite.toml", "mistakes of a file of yours, by line"),
        ("windlass sites adopt mycluster", "measure a cluster that is not in the list"),
    ),
    "logs": (
        ("windlass logs", "rank 0 of the last run"),
        (f"windlass logs {_RUN} --rank 3-5", "other ranks of another run"),
        ("windlass logs --follow --rank all", "of all ranks, until the run ends"),
        ("windlass logs --where", "node, cores and device that each rank got"),
    ),
    "watch": (
        ("windlass watch", "the last run, until it ends"),
        ("windlass watch --once", "one look"),
        ("windlass watch --demo 64", "a job that is made up, to see the screen"),
    ),
    "exec": (
        ("windlass exec -- nvidia-smi", "on the first node of the last run"),
        ("windlass exec --rank 12 -- sh -c 'py-spy dump --pid $WINDLASS_RANK_PID'", "beside a rank"),
    ),
    "runs": (
        ("windlass runs list", "all runs, their state and why they ended"),
        (f"windlass runs show {_RUN}", "every start of one, its cause and its snapshots"),
        (f"windlass runs resume {_RUN}", "go on where it was"),
        ("windlass runs clean --older-than 30 --yes", "remove folders of old runs that are done"),
    ),
    "report": (
        ("windlass report", "what the last run did, why it was slow, what to try"),
        (f"windlass report {_RUN} --against {_RUN}-1", "and how efficient it was against another one"),
        ("windlass report --format jobreport", "a table for a proposal"),
    ),
    "nodes": (
        ("windlass nodes list", "nodes that are avoided, and why"),
        ("windlass nodes forgive nid[0001-0004]", "use them again"),
    ),
    "doctor": (
        ("windlass doctor --quick", "seconds: this machine, or every node of the allocation"),
        ("windlass doctor --full train.py", "minutes: find the slow node; checks the script's environment too"),
    ),
    "explain-log": (
        ("windlass explain-log slurm-1234.out", "which lines are the cause, and what to do"),
        (f"windlass explain-log runs/{_RUN} --all", "of a run, the harmless lines too"),
    ),
    "bench": (
        ("windlass bench collectives --nodes 2", "as nccl-tests shows it"),
        ("windlass bench llm --model tiny", "a training step in tokens/s and TFLOP/s"),
        ("windlass bench compare a/record.json b/record.json", "two records against the noise"),
        ("windlass bench reference collectives", "published figures with their sources"),
    ),
    "tune": (
        ("windlass tune train.py --steps 30", "try the settings that sites tell people to try"),
        ("windlass tune --objective busbw --nodes 4", "by bandwidth, without a script"),
    ),
    "cache": (
        ("windlass cache start --root /lus/env", "show a folder on every node, read once for all of them"),
        ("windlass cache status", "hits, bytes and calls by origin"),
        ("windlass cache trace record --root /lus/env -- python -c 'import torch'", "before the first run"),
        ("windlass cache stop", "away with it"),
    ),
    "stage": (
        ("windlass stage data.tar --to /tmp --extract", "unpacked to /tmp/data on every node while it arrives"),
        ("windlass stage imagenet --to '${TMPDIR}' --shard", "each node its part"),
    ),
    "init": (
        ("windlass init --account ABC --partition gpu --time 2h", "keep what you would repeat"),
        ("windlass init --for lumi --account project_1", "for one machine only"),
    ),
    "completion": (
        ("windlass completion bash", 'put eval "$(windlass completion bash)" into ~/.bashrc'),
        ("windlass completion fish", "windlass completion fish | source"),
    ),
    "image": (
        ("windlass image plan pytorch-rocm", "the recipe of an image, each step with its reason"),
        ("windlass image build pytorch-ngc --tag mine", "build it with what is here"),
        ("windlass image check image.sif --site lumi", "what will happen with it there"),
    ),
    "bugreport": (
        ("windlass bugreport", "of this machine and the last run"),
        (f"windlass bugreport {_RUN} --without logs -o report.zip", "of another run, without its output"),
    ),
    "env": (
        (
            "windlass env plan --site lumi --with deepspeed",
            "how to make an environment there, each step with its reason",
        ),
        ("windlass env create /scratch/me/env", "make it here"),
    ),
    "selftest": (
        ("windlass selftest --nodes 2", "does the machine do what the plan says?"),
        ("windlass selftest --bundle lumi.tar.gz", "a bundle for the catalog's maintainers"),
    ),
}


def examples_text(command: str) -> str:
    """The end of a command's help."""
    rows = EXAMPLES.get(command, ())
    if not rows:
        return ""
    # Four blanks: two are what an option of the help begins with. What a line does stands above it, as a comment.
    return "\n".join(["examples:", *(f"    # {what}\n    {line}" for line, what in rows)])
