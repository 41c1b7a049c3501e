# SPDX-License-Identifier: Apache-2.0
"""`vit_jax cache_teacher`: a teacher's logits for a whole run, once, to disk."""

import dataclasses
from pathlib import Path
from typing import Any

from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import ConfigOptions, flag


@dataclasses.dataclass(kw_only=True)
class CacheTeacher(ConfigOptions):
    """Writes a teacher's logits of every image of a run, to distil from without running it.

    Images are augmented as in the run that --config describes; they are for
    --config.objective.distill.cache=DIR. The same command continues where it stopped.

      vit_jax cache_teacher --config=configs/distill_digits.py:unmixed --out=runs/logits
    """

    out: Path | None = flag(None, "where the logits are kept", "DIR", ask="where to? add --out=DIR")
    top_k: int = flag(0, "keep the K largest logits of each image and one for the others; 0: all")


def cache_teacher(given: CacheTeacher, cfg: Any) -> int:
    """Write the logits; returns the exit status."""
    # Late: a mistake in the config is reported before the slower half of the imports.
    from vit_jax.process import startup

    startup.configure()
    from vit_jax.train import write_logits as write

    startup.join_cluster()
    assert given.out is not None
    return write.write(cfg, given.out, given.top_k)


main = options.verb(CacheTeacher, cache_teacher, options.read_config)
