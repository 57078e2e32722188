"""What an image is made of, whatever its form: opened, read, closed."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.build.images.facts import ImageReport, image_root, read_image
from windlass.errors import UsageError
from windlass.node.libs.closure import CostlyRootError
from windlass.node.libs.decide import ImageFacts
from windlass.build.images.unpack import open_image


def inspect_image(image: str, environ: Mapping[str, str]) -> tuple[ImageReport, ImageFacts]:
    """The report for people and the facts for the decision. Raises as `open_image` does."""
    try:
        with open_image(image, environ) as opened:
            root = image_root(opened.folder, opened.environment)
            return read_image(root, image, opened.kind, opened.environment, opened.names)
    except CostlyRootError as error:
        raise UsageError(f"{image}: not read to its end: {error}", hint="is this image from a source you trust?") from error
