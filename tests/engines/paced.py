# SPDX-License-Identifier: Apache-2.0
"""main.py, each batch of which takes as many seconds more as the file $PACE says.

PACE=/tmp/pace python -m tests.engines.paced --config=... --workdir=...

With $CACHES each node has a disk of its own below it, and shares none with the others.

So a test holds a run while it is disturbed, and lets it end at once thereafter. A dead host's lock
of a bucket expires sooner than by default, for the sake of the test's time.
"""

import os
import sys
import time
from pathlib import Path

from vit_jax.cli.train import main
from vit_jax.data.stream.batches import Batch, Batches
from vit_jax.workdir import lock

_read = Batches.__getitem__


def _slowly(self: Batches, index: int) -> Batch:
    time.sleep(float(Path(os.environ["PACE"]).read_text()))
    return _read(self, index)


if __name__ == "__main__":
    if caches := os.environ.get("CACHES"):
        os.environ["XDG_CACHE_HOME"] = f"{caches}/{os.environ['SLURMD_NODENAME']}"
    lock.BEAT, lock.LEASE = 0.5, 4.0
    Batches.__getitem__ = _slowly
    sys.exit(main(["main.py", *sys.argv[1:]]))
