"""Draws a small data set of coloured noise: make_data.py FOLDER [CLASSES] [IMAGES PER CLASS]."""

from __future__ import annotations

import random
import sys
from pathlib import Path

SIZE = 32


def main(folder: Path, classes: int, images: int) -> None:
    for label in range(classes):
        place = folder / f"class{label:03d}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(images):
            rnd = random.Random(1000 * label + number)
            level = 255 * label // max(1, classes - 1)
            pixels = bytes(min(255, max(0, level + rnd.randrange(-40, 41))) for _ in range(SIZE * SIZE * 3))
            (place / f"{number:05d}.raw").write_bytes(pixels)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(word) for word in (*sys.argv[2:4], "10", "100")[:2]))
