# SPDX-License-Identifier: Apache-2.0
"""Ask what refused something, where the text of the refusal is pinned in the tests of that file."""

import contextlib
from collections.abc import Iterator

import pytest

from vit_jax.errors import UserError


@contextlib.contextmanager
def refused_by(
    code: str, field: str | None = None, kind: type[UserError] = UserError
) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a UserError of this code, and of this field where one is given."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    asked = (code, error.field if field is None else field)
    assert (error.code, error.field) == asked, f"{error.code}, {error.field!r}: {error}"
