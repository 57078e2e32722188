"""A training that shows nothing but a progress bar, as tqdm draws it: one line that never ends."""

HANG_AFTER_S = 5
BAR = f"""
import os, sys, time
with open(os.environ["WINDLASS_HEARTBEAT"], "w") as beat:  # from here on silence counts, however short the start was
    beat.write(f"{{1:>15d}} {{time.time():>18.3f}}\\n")
end = time.monotonic() + {2 * HANG_AFTER_S}
while time.monotonic() < end:
    sys.stderr.write("\\r*")
    sys.stderr.flush()
    time.sleep(0.2)
"""
"""Fewer bytes than launchers keep before they cut a line."""
