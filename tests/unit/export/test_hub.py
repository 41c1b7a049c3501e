# SPDX-License-Identifier: Apache-2.0
"""The Hub's own client against a small server that answers as the Hub does."""

import importlib.util
import sys

import pytest

from vit_jax.errors import UserError
from vit_jax.export import hub

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("huggingface_hub") is None, reason="needs the extra [hub]"
)


@pytest.mark.parametrize("repo", ["repo", "me/repo/more", "me/", "https://huggingface.co/me/repo"])
def test_a_name_of_another_form(repo: str) -> None:
    with pytest.raises(UserError, match="must be USER/REPO"):
        hub.check(repo)


def test_a_missing_client_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"needs huggingface_hub: .*-m pip install .*\[hub\]'"):
        hub.check("me/repo")
