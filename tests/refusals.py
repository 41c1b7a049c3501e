# SPDX-License-Identifier: Apache-2.0
"""Ask what refused something, where the text of the refusal is pinned in the tests of that file."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from vit_jax.errors import UserError

# What refuses most: a value outside its field's range, and a field that does nothing.
RANGE = "settings.fields.check_range"
EFFECT = "settings.fields.check_effects"

# A row of a table: the text, if it is of the file under test, or else the code and the field.
Told = str | tuple[str, str]


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


def refused_as(told: Told) -> AbstractContextManager[pytest.ExceptionInfo[UserError]]:
    """Expect a UserError of this text, a regex, or of this code and field."""
    return pytest.raises(UserError, match=told) if isinstance(told, str) else refused_by(*told)
