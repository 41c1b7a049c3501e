# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax configs`: the runs and sweeps that there are, in groups."""

import dataclasses
import re
import textwrap
from pathlib import Path

from vit_jax.cli import config_files, options
from vit_jax.cli.config_files import ConfigFile
from vit_jax.cli.options import Options
from vit_jax.errors import UserError

# Group: what its files' names or titles have; the first that fits.
_GROUPS = {"SMALL, FOR A LAPTOP": r"_digits", "FINE-TUNE": r"fine-tuned|transferred"}
_GROUPS |= {"DISTIL": r"\btaught\b", "PRETRAIN": r""}


@dataclasses.dataclass(kw_only=True)
class Configs(Options):
    """Lists the files of configs/, a line each, in groups.

    RUN is what a file takes after a colon, one of the words below it:
    --config=configs/deit_imagenet.py:s16. Add --dry_run to see what a run is.
    """


def list_configs(given: Configs) -> None:
    """Print the list."""
    files, sweeps = config_files.read(), config_files.read(Path("configs/sweeps"))
    if not files:
        raise UserError("no folder configs here; start in the repository's folder")
    groups: dict[str, list[ConfigFile]] = {name: [] for name in reversed(_GROUPS)}
    for file in files:
        text = f"{file.path} {file.title}"
        groups[next(name for name, has in _GROUPS.items() if re.search(has, text))] += [file]
    groups["SWEEPS (python -m vit_jax sweep run FILE --out=DIR)"] = sweeps
    width = max(len(_path(file)) for file in [*files, *sweeps]) + 2
    for name, group in groups.items():
        print(name)
        for file in group:
            print(f"  {_path(file):{width}}{file.title}")
            indent = " " * (width + 4)
            for line in textwrap.wrap(", ".join(file.runs), 100 - len(indent)):
                print(indent + line)
        print()
    print("python main.py --config=FILE[:RUN] --workdir=DIR trains; --dry_run shows what it is")


def _path(file: ConfigFile) -> str:
    return file.path + ":RUN" * bool(file.runs)


main = options.verb(Configs, list_configs)
