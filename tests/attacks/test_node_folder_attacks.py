"""Attacks on the folders of agents: names taken by another user in a place that all may write to."""

from __future__ import annotations

import os

from attacks.record import record
from attacks.stranger import as_stranger, common_place, require_stranger
from planning import plan_for
from windlass.node.agent.claim import leave, sweep_other_runs
from windlass.plan.cache import agents_folder
from windlass.run.folder import make_folder


def test_folders_that_a_stranger_made_first_are_in_nobodys_way() -> None:
    """What can be guessed (the uid) is no longer the whole name; what is not ours is neither entered nor removed."""
    require_stranger()
    uid = os.getuid()
    with common_place() as place:

        def squat() -> None:
            for name in (f"windlass-{uid}", f"windlass-{uid}-agents", f"windlass-{uid}-0000.agents"):
                (place / name).mkdir(mode=0o777)
            (place / f"windlass-{uid}-ffff.agents").symlink_to("/etc")
            (place / f"windlass-{uid}-eeee.agents").mkdir(mode=0o777)
            (place / f"windlass-{uid}-eeee.agents" / "lock").touch(mode=0o666)

        as_stranger(squat)
        taken = sorted(path.name for path in place.iterdir())
        names = {make_folder(None, place / "runs", "train").run_id for _ in range(20)}
        assert len(names) == 20 and all(len(name) == 16 for name in names), "64 random bits each"
        folder = agents_folder(plan_for("lumi")[0], uid, "RUN").rpartition("/")[2]
        base = place / folder.replace("RUN", names.pop())
        sweep_other_runs(str(base))
        base.mkdir(mode=0o700)
        leave(str(base))
        assert not base.exists()
        left = sorted(path.name for path in place.iterdir() if path.name.startswith("windlass-"))
        assert left == taken
    record(
        "the folders of a user's agents made first by another user in /tmp",
        expected="other names are used, theirs stay",
        seen="names of 64 random bits; nothing of theirs entered or removed",
        folders=len(taken),
    )
