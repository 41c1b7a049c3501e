# SPDX-License-Identifier: Apache-2.0
"""What every augmentation policy keeps, and how the forms are read."""

import pytest

from vit_jax.data.augment import parse
from vit_jax.errors import UserError


@pytest.mark.parametrize("text", ["randaug", "randaug(2)", "randaug(2,99)", "rand(2,10)", "x"])
def test_an_unknown_policy_is_one_line_with_the_known_forms(text):
    with pytest.raises(UserError, match="randaug") as caught:
        parse(text)
    assert len(str(caught.value).splitlines()) == 1
    assert parse("") is None
