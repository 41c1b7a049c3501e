# SPDX-License-Identifier: Apache-2.0
"""How many examples the fuzzed tests draw: a fixed few, or with FUZZ_EXAMPLES=10000 new ones."""

import os

from hypothesis import HealthCheck, settings

MORE = os.environ.get("FUZZ_EXAMPLES")


def examples(count: int) -> settings:
    """Return settings for a test of `count` examples, which a failure finds again."""
    return settings(
        max_examples=int(MORE or count),
        deadline=None,
        derandomize=not MORE,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
