# SPDX-License-Identifier: Apache-2.0
"""What is done to a text before it is cut into tokens, as each published code does it.

Sources: open_clip tokenizer.py (`get_clean_fn`); big_vision pp/ops_text.py (`lower`); transformers
tokenization_siglip.py and tokenization_siglip2.py.
"""

import enum
import html
import re
import string

from vit_jax import errors
from vit_jax.errors import UserError

# open_clip's tokens of start and end, which a text can have too, but for those that its expression
# takes for more of the punctuation before them.
_MARKS = re.compile(
    r"((?<![^\w\s])(?<!_)(?:<(?:start|end)_of_text>)+)|(<(?:start|end))(?=_of_text>)"
)
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Clean(enum.StrEnum):
    """How a text is cleaned; the first three repair it by ftfy and undo HTML's entities first."""

    REPAIR_LOWER = "repair_lower"  # open_clip's own tokenizer: `lower`
    REPAIR_SPACES = "repair_spaces"  # open_clip with another's tokenizer: `whitespace`
    REPAIR_CANONICAL = "repair_canonical"  # the same: `canonicalize`, no punctuation
    LOWER_ASCII = "lower_ascii"  # big_vision's tf.strings.lower, which knows A to Z
    LOWER = "lower"  # transformers' Siglip2Tokenizer
    LOWER_NO_PUNCTUATION = "lower_no_punctuation"  # transformers' SiglipTokenizer
    NO_PUNCTUATION = "no_punctuation"  # the same with do_lower_case false
    SPACES = "spaces"  # one space for each run of white space, as this project's own have it
    NONE = "none"  # the model's own normaliser does it


def clean(text: str, how: Clean) -> str:
    """Clean a text; half of a surrogate pair, which has no UTF-8, becomes a question mark.

    Raises UserError: ftfy is needed and not installed.
    """
    text = text.encode(errors="replace").decode()
    match how:
        case Clean.REPAIR_LOWER:
            text = " ".join(_repaired(text).split()).lower()
            return _MARKS.sub(lambda m: m[1] or f"{m[2]} ", text) if "_of_text>" in text else text
        case Clean.REPAIR_SPACES:
            return " ".join(_repaired(text).split())
        case Clean.REPAIR_CANONICAL:
            text = _repaired(text).replace("_", " ").translate(_PUNCTUATION)
            return " ".join(text.lower().split())
        case Clean.LOWER_ASCII:
            return text.translate(_LOWER)
        case Clean.LOWER:
            return text.lower()
        case Clean.LOWER_NO_PUNCTUATION:
            text = text.lower().translate(_PUNCTUATION)
            return re.sub(r"\s+", " ", text).strip()
        case Clean.NO_PUNCTUATION:
            return re.sub(r"\s+", " ", text.translate(_PUNCTUATION)).strip()
        case Clean.SPACES:
            return " ".join(text.split())
        case Clean.NONE:
            return text


def check_installed(how: Clean) -> None:
    """Raise UserError where a way to clean needs a package that is not installed."""
    if how in (Clean.REPAIR_LOWER, Clean.REPAIR_SPACES, Clean.REPAIR_CANONICAL):
        _repaired("")


def _repaired(text: str) -> str:
    try:
        import ftfy
    except ModuleNotFoundError:
        raise UserError(errors.missing("ftfy")) from None
    return html.unescape(html.unescape(ftfy.fix_text(text))).strip()
