# SPDX-License-Identifier: Apache-2.0
"""What one check of `doctor` found: a line, and what to do about it."""

from typing import NamedTuple

OK, WARNING, BROKEN = "ok", "warning", "broken"


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        state: "ok"; "warning": runs work, but slower or with less than one may think; "broken".
        text: what was found.
        fix: what to do, where there is something.
    """

    state: str
    text: str
    fix: str = ""
