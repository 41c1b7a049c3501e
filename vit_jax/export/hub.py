# SPDX-License-Identifier: Apache-2.0
"""A folder onto the Hugging Face Hub."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, install


def check(repo: str) -> None:
    """Raise UserError, before anything is computed, for a wrong name or token, or no access."""
    hub = _client()
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise UserError(f"--push={repo} must be USER/REPO or ORGANISATION/REPO")
    if not hub.get_token():
        token = "a token of the Hugging Face Hub that may write"
        raise UserError(f"--push needs {token}: run `hf auth login`, or set HF_TOKEN")
    with _in_words(repo):
        hub.HfApi(library_name="vit_jax").whoami()


def push(folder: Path, files: Sequence[str], repo: str, *, public: bool, message: str) -> str:
    """Upload these files of a folder and return the repository's address.

    A repository that is not there is created, private unless `public`; one that is keeps its
    visibility and its other files.

    Raises UserError: the Hub cannot be reached, or refuses.
    """
    with _in_words(repo, f"; {folder} is complete, and can be pushed again"):
        api = _client().HfApi(library_name="vit_jax")
        url = api.create_repo(repo, private=not public, exist_ok=True)
        api.upload_folder(
            folder_path=folder, repo_id=repo, allow_patterns=list(files), commit_message=message
        )
        return str(url)


def _client() -> Any:
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"--push needs huggingface_hub: {install('hub')}") from None
    return huggingface_hub


@contextlib.contextmanager
def _in_words(repo: str, rest: str = "") -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each version of its HTTP client raises another
        raise UserError(f"--push={repo}: {_reason(error)}{rest}") from error


def _reason(error: Exception) -> str:
    """Return the error of the Hub, or of the way to it, in one line."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    reason = getattr(error, "server_message", None) or " ".join(str(error).split())
    if status in (401, 403):
        return f"the Hub refuses the token ({status}: {reason}); it must be allowed to write there"
    if status == 404:
        return f"the Hub has no such user or organisation, or not for this token (404: {reason})"
    if status:
        return f"the Hub answers {status}: {reason}"
    return f"the Hub cannot be reached, or its answer not read: {reason}"
