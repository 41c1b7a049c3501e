# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.registry import _registry

from vit_jax.errors import DataError, UserError
from vit_jax.storage import remote


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", pauses.append)
    return pauses


def test_schemes() -> None:
    assert remote.scheme("gs://b/x") == "gs"
    assert [remote.is_remote(p) for p in ("/a/b", "a:b", "hf://d/x", "C:\\x")] == [0, 0, 1, 0]
    with pytest.raises(UserError, match=r"^ftp://b/x: ftp:// is not read here; .* gs://, s3://"):
        remote.scheme("ftp://b/x")


def test_braces() -> None:
    assert remote.braces("a{08..10}.{tar,cls}") == [
        f"a{n}.{end}" for n in ("08", "09", "10") for end in ("tar", "cls")
    ]
    assert remote.braces("a{8..10}") == ["a8", "a9", "a10"]
    assert remote.braces("{00..100}")[::50] == ["000", "050", "100"]  # as bash has it
    assert remote.braces("a") == ["a"]


def test_files_of_this_machine(tmp_path: Path) -> None:
    for name in ("a1", "a2", "b"):
        (tmp_path / name).write_bytes(name.encode() * 4)
    (tmp_path / "a3").mkdir()
    found = remote.find(f"{tmp_path}/a*")
    assert [(Path(f.path).name, f.size) for f in found] == [("a1", 8), ("a2", 8)]
    assert found[0] == remote.info(found[0].path)
    assert remote.find(f"{tmp_path}/{{b,a1,none}}")[1].path.endswith("b")
    assert remote.read(f"{tmp_path}/b") == b"bbbb"
    assert remote.read_range(f"{tmp_path}/a1", 1, 3) == b"1a"
    assert remote.read_range(f"{tmp_path}/a1", 6, 99) == b"a1"
    (tmp_path / "a[1]").touch()
    assert [f.path for f in remote.find(f"{tmp_path}/a[1]")] == [f"{tmp_path}/a[1]"]


def test_what_is_not_installed_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    remote._driver.cache_clear()
    for name in list(_registry):  # drivers that another test has loaded
        monkeypatch.delitem(_registry, name)
    for module, address, extra in (
        ("gcsfs", "gs://b/x", "gcs"),
        ("s3fs", "s3://b/x", "s3"),
        ("aiohttp", "https://b/x", "http"),
        ("huggingface_hub", "hf://b/x", "hub"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UserError, match=rf"needs .*pip install .*\[{extra}\]'$"):
            remote.read(address)


class _Answer(Exception):
    def __init__(self, **told: Any) -> None:
        super().__init__("the server's\nwords")
        self.__dict__.update(told)


def _not_found(cause: Exception) -> FileNotFoundError:
    error = FileNotFoundError("x")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (_Answer(status=403), r"^https://b/x: no right to do this; the file must be public"),
        (OSError("Forbidden: b/x\nnot yours"), "no right to do this"),
        (_Answer(code="401"), "no right to do this"),
        (_Answer(response=SimpleNamespace(status_code=404)), "there is no such file or bucket$"),
        (FileNotFoundError("x"), "there is no such file or bucket$"),
        (_not_found(_Answer(status=403)), "no right to do this"),
        (_Answer(status=416), r"the server refuses \(the server's words\)$"),
    ],
)
def test_what_no_second_try_changes(error: Exception, line: str, no_waiting: list[float]) -> None:
    def do() -> None:
        raise error

    with pytest.raises(remote.RemoteError, match=line) as caught:
        remote.trying("https://b/x", do)
    assert not no_waiting
    # What is gone may be replaced by another example, of every kind of dataset.
    assert isinstance(caught.value, DataError) == ("there is no such" in line)


@pytest.mark.parametrize("error", [_Answer(status=503), _not_found(OSError()), TimeoutError()])
def test_tries_again_with_growing_pauses(error: Exception, no_waiting: list[float]) -> None:
    fails = [error] * 3

    def do() -> str:
        if fails:
            raise fails.pop()
        return "read"

    assert remote.trying("s3://b/x", do) == "read"
    for least, pause in zip((0.25, 0.5, 1.0), no_waiting, strict=True):
        assert least <= pause <= 3 * least


def test_gives_up(no_waiting: list[float]) -> None:
    def do() -> None:
        calls.append(1)
        raise _Answer(status=503)

    # gcsfs and huggingface_hub have tried six times by then.
    for address, tries in (("https://b/x", 6), ("gs://b/x", 1), ("hf://b/x", 1)):
        calls: list[int] = []
        with pytest.raises(remote.RemoteError, match="no answer after several tries"):
            remote.trying(address, do)
        assert len(calls) == tries


def test_a_refused_condition_is_the_callers(no_waiting: list[float]) -> None:
    def do() -> None:
        raise FileExistsError("412")

    with pytest.raises(FileExistsError):
        remote.trying("gs://b/x", do)


def test_a_folder_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"size": 0, "type": "directory"}
    monkeypatch.setattr(remote, "filesystem", lambda _: SimpleNamespace(info=lambda _: facts))
    with pytest.raises(remote.MissingError, match="gs://b/tars: is no file, but a folder; name"):
        remote.find("gs://b/tars")


def test_hf_reads_no_more_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def cat_file(path: str, **how: Any) -> bytes:
        asked.update(how, path=path)
        return b"12"

    monkeypatch.setattr(remote, "filesystem", lambda _: SimpleNamespace(cat_file=cat_file))
    assert remote.read_range("hf://datasets/a/b/c", 3, 5) == b"12"
    assert asked == {"path": "hf://datasets/a/b/c", "start": 3, "end": 5, "cache_type": "none"}
    monkeypatch.setattr(remote, "_ranged", lambda *_: b"12")
    with pytest.raises(remote.RemoteError, match="sends whole files alone; download it"):
        remote.read_range("https://b/x", 3, 4)
