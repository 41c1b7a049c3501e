# SPDX-License-Identifier: Apache-2.0
from vit_jax.storage.braces import braces


def test_braces_are_a_shells() -> None:
    assert braces("a") == ["a"]
    assert braces("t-{08..10}.tar") == ["t-08.tar", "t-09.tar", "t-10.tar"]
    assert braces("{a,b}/{1..2}") == ["a/1", "a/2", "b/1", "b/2"]
