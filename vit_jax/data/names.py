# SPDX-License-Identifier: Apache-2.0
"""One spelling of what data call their classes and splits, wherever the text comes from."""

import re
import unicodedata

_SPACES = re.compile(r"\s+")


def one_spelling(text: str) -> str:
    """Return a label's, a class's or a split's text as this project spells it.

    Letters with accents are composed (Unicode's NFC), spaces at both ends go, those inside become
    one space. Case stays: handwritten letters may well lie in "a" and "A".
    """
    return _SPACES.sub(" ", unicodedata.normalize("NFC", text.replace("\ufeff", ""))).strip()


def alike(text: str) -> str:
    """Return what two spellings have in common that a person would take for one: no case."""
    return unicodedata.normalize("NFC", one_spelling(text).casefold())
