# SPDX-License-Identifier: Apache-2.0
"""What was counted of a dataset, for tests of sources."""

from vit_jax.data import Source
from vit_jax.data.account import Account
from vit_jax.data.sources.base import account_of


def account(source: Source) -> Account:
    """Return a source's account; fails where nobody has counted."""
    found = account_of(source)
    assert found is not None
    return found
