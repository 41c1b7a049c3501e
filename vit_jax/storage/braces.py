# SPDX-License-Identifier: Apache-2.0
"""Names written with braces, as shells have them: {000..146}, {a,b}."""

import re


def braces(pattern: str) -> list[str]:
    """Expand "{000..146}" and "{a,b}" of a pattern, as a shell does."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if numbers:
        first, last = numbers.groups()
        is_padded = any(re.match(r"0\d", end) for end in numbers.groups())
        width = max(len(first), len(last)) if is_padded else 0
        words = [str(n).zfill(width) for n in range(int(first), int(last) + 1)]
    else:
        words = match[1].split(",")
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [text for word in words for text in braces(f"{before}{word}{after}")]
