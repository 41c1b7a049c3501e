# SPDX-License-Identifier: Apache-2.0
"""A folder in a bucket, of which one listing has told all paths."""

import dataclasses
from collections.abc import Iterator

from vit_jax.errors import UserError, shown
from vit_jax.storage import remote


@dataclasses.dataclass(frozen=True)
class RemoteFolder:
    """What `folders` asks of a folder, for an address."""

    address: str
    inside: dict[str, dict[str, bool]]  # by address: of each name there, whether it is a folder
    below: tuple[remote.FileInfo, ...] = ()  # all files

    @classmethod
    def open(cls, address: str) -> "RemoteFolder":
        """List all that is below an address; raises RemoteError, or UserError: it is a server's."""
        if remote.scheme(address).startswith("http"):
            advice = "a server lists nothing; name the files in a table, csv:https://..."
            raise UserError(f"folder:{shown(address)}: {advice}")
        address = address.rstrip("/")
        inside: dict[str, dict[str, bool]] = {address: {}}
        below = tuple(f for f in remote.find(f"{address}/**") if not f.path.endswith("/"))
        for file in below:
            path, is_folder = file.path, False
            while len(path) > len(address):
                above, _, name = path.rpartition("/")
                names = inside.setdefault(above, {})
                if names.get(name):  # a file may be called as the folder is
                    break
                names[name] = is_folder
                path, is_folder = above, True
        return cls(address, inside, below)

    def walk(self) -> Iterator[tuple[str, bool]]:
        """Yield the paths of all files and folders below, and whether each is a folder."""
        seen: set[str] = set()
        for file in self.below:
            path = file.path.removeprefix(f"{self.address}/")
            above = path
            while above := above.rpartition("/")[0]:
                if above in seen:
                    break
                seen.add(above)
                yield above, True
            yield path, False

    def __truediv__(self, name: str) -> "RemoteFolder":
        return RemoteFolder(f"{self.address}/{name}".rstrip("/"), self.inside)

    def __str__(self) -> str:
        return self.address

    def is_absolute(self) -> bool:
        """Return that messages write it as it is."""
        return True

    def is_dir(self) -> bool:
        """Return whether there is anything in it."""
        return bool(self.inside.get(self.address))

    def folders(self) -> list[str]:
        """Name the folders in it."""
        return [name for name, is_folder in self.inside.get(self.address, {}).items() if is_folder]

    def files(self) -> list[str]:
        """Name the files in it."""
        names = self.inside.get(self.address, {}).items()
        return [name for name, is_folder in names if not is_folder]
