# SPDX-License-Identifier: Apache-2.0
"""The files of a published network: a repository of the Hugging Face Hub, or a folder like one.

The Hub's own client, the extra [hub], downloads, caches and works offline (HF_HUB_OFFLINE=1). What
is read is JSON and .safetensors, which run nothing.
"""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, install, shown
from vit_jax.process import waiting
from vit_jax.storage import foreign
from vit_jax.weights import files
from vit_jax.weights.files import WeightsFile, check_names
from vit_jax.weights.readers import safetensors_file

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
OPEN_CLIP_WEIGHTS = "open_clip_model.safetensors"
_INDEX = f"{WEIGHTS}.index.json"  # of weights in several files
_MAX_JSON, _MAX_WEIGHTS, _MAX_FILES = 1 << 24, 1 << 36, 1 << 10  # bytes, bytes, files
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def is_folder(path: str) -> bool:
    """Return whether a reference's path is a folder's: `./name`, `/name`, `~/name` or `name`."""
    return path[:1] in "./~" or (_NAME.fullmatch(path.partition("@")[0]) is None)


@dataclasses.dataclass(frozen=True)
class Repository:
    """A repository at one of its commits, or a folder; files are downloaded as they are asked for.

    Attributes:
        name: in messages: "timm/vit_small_patch14_dinov2.lvd142m".
        revision: a branch, a tag or a commit; "" of a folder.
    """

    name: str
    revision: str = ""

    @property
    def ref(self) -> str:
        """What `opened` finds the very same files by."""
        return f"{self.name}@{self.revision}" if self.revision else self.name

    def json(self, file: str) -> Mapping[str, Any] | None:
        """Read a file of JSON; None where there is none.

        Raises UserError: it is no object of JSON, or too large.
        """
        path = self._path(file, _MAX_JSON)
        if path is None:
            return None
        source = self.source(file)
        try:
            tree = json.loads(foreign.read(Path(path), _MAX_JSON))
        except UserError:
            tree = None
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or "no JSON"
            raise UserError(f"{source}: {reason}") from None
        if not isinstance(tree, dict):
            raise UserError(f"{source} must hold an object of JSON of at most {_MAX_JSON:,} bytes")
        return tree

    def source(self, file: str) -> str:
        """Name a file of it in messages."""
        return shown(os.path.join(self.name, file))

    @contextlib.contextmanager
    def weights(self) -> Iterator[WeightsFile]:
        """Open its weights, of one file or of several.

        Raises UserError: there is no .safetensors, or not all of it.
        """
        for name in (WEIGHTS, OPEN_CLIP_WEIGHTS):
            if path := self._path(name, _MAX_WEIGHTS):
                with safetensors_file.opened(path) as found:
                    yield files.bare(found._replace(name=self.source(name)))
                return
        places = self._index()
        with contextlib.ExitStack() as stack:
            shapes, read = {}, {}
            for file in sorted(set(places.values())):
                path = self._path(file, _MAX_WEIGHTS)
                if path is None:
                    raise UserError(f"{self.source(_INDEX)} names {file}, which is not there")
                part = stack.enter_context(safetensors_file.opened(path))
                # One that two files hold is read from the one where the index says that it is.
                here = [k for k in part.shapes if k not in shapes or places.get(k) == file]
                shapes |= {key: part.shapes[key] for key in here}
                read |= dict.fromkeys(here, part.read)
            check_names(self.source(_INDEX), shapes)
            whole = WeightsFile(self.source(_INDEX), shapes, lambda key: read[key](key))
            yield files.bare(whole)

    def _index(self) -> Mapping[str, str]:
        tree = self.json(_INDEX)
        if tree is None:
            raise UserError(
                f"{self.name} holds no {WEIGHTS}; other files of weights are not read from a "
                "repository, as they can run code: download one and name it, timm:FILE or npz:FILE"
            )
        places = tree.get("weight_map")
        fit = isinstance(places, dict) and all(
            isinstance(file, str) and re.fullmatch(r"[\w-][\w.-]*\.safetensors", file)
            for file in places.values()
        )
        if not fit or not places or len(set(places.values())) > _MAX_FILES:
            raise UserError(f"{self.source(_INDEX)}: weight_map must name .safetensors beside it")
        return places

    def find(self, file: str, most: int) -> Path | None:
        """Return where a file of at most so many bytes is on this machine; None for no such file.

        Raises UserError: it is larger.
        """
        found = self._path(file, most)
        return None if found is None else Path(found)

    def _path(self, file: str, most: int) -> str | None:
        if self.revision:
            return _download(self.name, file, self.revision, most)[0]
        place = Path(self.name, foreign.checked(file, self.name))
        foreign.check_link(place)
        return str(place) if place.exists() else None


def opened(path: str) -> Repository:
    """Find a repository by a reference's path: "USER/NAME", "USER/NAME@REVISION", or a folder.

    Raises UserError: no such repository, revision or folder; no connection and nothing in the
        cache; the extra is missing.
    """
    if os.path.isdir(path) and is_folder(path):
        return Repository(path)
    name, _, revision = path.partition("@")
    if is_folder(path):
        raise UserError(
            f"{shown(path)} is no folder, and no repository of the Hugging Face Hub, USER/NAME"
        )
    _, commit = _download(name, CONFIG, revision or "main", _MAX_JSON)
    return Repository(name, commit or revision or "main")


def _client() -> Any:
    try:
        import huggingface_hub.constants  # pyright: ignore[reportMissingImports]
        import huggingface_hub.errors  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            f"a repository of the Hugging Face Hub needs huggingface_hub: {install('hub')}; "
            "a folder with its files, hub:./FOLDER, needs nothing"
        ) from None
    return huggingface_hub


def _download(name: str, file: str, revision: str, most: int) -> tuple[str | None, str]:
    """Return where a file is in the cache, downloading it if need be, and the commit's hash.

    None for a file that the repository does not have.
    """
    hub = _client()
    get = lambda **more: hub.hf_hub_download(  # noqa: E731
        name, file, revision=revision, library_name="vit_jax", **more
    )
    found = _asked(hub, name, revision, lambda: get(dry_run=True))
    if found is None:
        return None, ""
    size = found.file_size or 0
    if size > most:
        raise UserError(f"{name}/{file} has {size:,} bytes; at most {most:,} are read")
    if not found.will_download:
        return found.local_path, found.commit_hash
    with waiting.said(f"downloading {name}/{file}, {size:,} bytes"):
        return _asked(hub, name, revision, get), found.commit_hash


def _asked(hub: Any, name: str, revision: str, get: Callable[[], Any]) -> Any:
    """Return what the client returns, None for no such file, its other errors in one line."""
    errors = hub.errors
    try:
        return get()
    except errors.GatedRepoError:
        why = "gives its files to those who accepted its terms on its page: do so, run"
        raise UserError(f"{name} {why} `hf auth login`, or set HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name} has no branch, tag or commit {revision!r}") from None
    except errors.RepositoryNotFoundError:
        why = "the Hugging Face Hub has no such repository, or not for you"
        raise UserError(f"{name}: {why}: run `hf auth login` for a private one") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        offline = hub.constants.HF_HUB_OFFLINE
        why = "HF_HUB_OFFLINE is set" if offline else "the Hugging Face Hub cannot be reached"
        raise UserError(f"{name} at {revision} is not in the cache, and {why}") from None
    except errors.EntryNotFoundError:
        return None
    except errors.HFValidationError as error:
        raise UserError(f"{name}: {' '.join(str(error).split())}") from None
    except Exception as error:  # each version of its HTTP client raises another
        reason = getattr(error, "server_message", None) or " ".join(str(error).split())
        raise UserError(f"{name}: the Hugging Face Hub cannot be read: {reason[:300]}") from error
