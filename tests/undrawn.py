# SPDX-License-Identifier: Apache-2.0
"""Runs that leave empty pictures: what a run's numbers are does not hang on what it draws.

To draw a run's curve and its matrix of confusions takes a second, of a test's run a third. The
pictures have tests of their own, and the runs of tests/smoke and of the documents draw theirs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PICTURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module", autouse=True)
def undrawn() -> Iterator[None]:
    """Write files without a picture where runs of this process would draw."""
    from vit_jax.evals import report
    from vit_jax.train import ending

    def curve(rows: Any, out: Path, *_: Any, **__: Any) -> None:
        assert rows
        out.write_bytes(PICTURE)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ending, "learning_curve", curve)
        patch.setattr(report, "draw_confusion", lambda *_, **__: PICTURE)
        yield
