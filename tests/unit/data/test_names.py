# SPDX-License-Identifier: Apache-2.0
"""Labels that a person reads alike are spelled alike."""

from vit_jax.data.names import alike, one_spelling


def test_spaces_and_accents_have_one_spelling_and_case_stays() -> None:
    for text in (
        "café au lait",
        "cafe\u0301 au lait ",
        "\tcafé\u00a0 au\nlait",
        "\ufeffcafé au lait",
    ):
        assert one_spelling(text) == "café au lait", text
    assert one_spelling("Cat") != one_spelling("cat")
    assert alike("Straße") == alike("STRASSE ")
