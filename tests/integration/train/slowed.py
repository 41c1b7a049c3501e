# SPDX-License-Identifier: Apache-2.0
"""main.py in a process whose data loader is slow: each batch takes SLOW seconds more.

SLOW=0.3 python -m tests.integration.train.slowed --config=... --workdir=...
"""

import os
import sys
import time

from vit_jax.cli.train import main
from vit_jax.data.stream.batches import Batches
from vit_jax.data.stream.prefetch import Batch

_read = Batches.__getitem__


def _slowly(self: Batches, index: int) -> Batch:
    time.sleep(float(os.environ["SLOW"]))
    return _read(self, index)


if __name__ == "__main__":
    Batches.__getitem__ = _slowly
    sys.exit(main(sys.argv))
