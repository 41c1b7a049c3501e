# SPDX-License-Identifier: Apache-2.0
"""A contact sheet of what the corruptions do to the first image of a split."""

import contextlib
from collections.abc import Sequence

from vit_jax.cli import contact_sheet
from vit_jax.cli.contact_sheet import Tile
from vit_jax.evals import Classify, corruptions
from vit_jax.evals.robustness import Variant


def corrupted_sheet(evaluation: Classify, variants: Sequence[Variant]) -> bytes:
    """Draw a row for each corruption, a tile for each severity, as the model sees them; a PNG."""
    with contextlib.closing(evaluation.batches(evaluation.batch_size)) as stream:
        batch = next(iter(stream))
    image, index = batch["image"][0], int(batch["index"][0])
    rows = {name: [Tile(image, name.replace("_", " "))] for name, _ in variants}
    for name, severity in variants:
        made = corruptions.corrupt(image, name, severity, index)
        strength = str(corruptions.strength(name, severity, image.shape[:2])).strip("()")
        rows[name].append(Tile(made, f"{severity}: {strength}"))
    title = f"severities of {corruptions.benchmark(image.shape[:2])}; the image itself to the left"
    return contact_sheet.render(list(rows.values()), title)
