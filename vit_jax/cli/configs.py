# SPDX-License-Identifier: Apache-2.0
"""`vit_jax configs`: the runs and sweeps that there are, in groups."""

import dataclasses
import re
import textwrap

from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options
from vit_jax.settings import config_files
from vit_jax.settings.config_files import ConfigFile

# Group: what its files' names or titles have; the first that fits.
_GROUPS = {"SMALL, FOR A LAPTOP": r"_digits", "FINE-TUNE": r"fine-tuned|transferred"}
_GROUPS |= {"DISTIL": r"\btaught\b", "PRETRAIN": r""}


@dataclasses.dataclass(kw_only=True)
class Configs(Options):
    """Lists the runs and sweeps that come with the package, a line each, in groups.

    RUN is what a file takes after a colon, one of the words below it: --config=deit_imagenet:s16.
    Add --dry_run to see what a run is. The last line is the folder of the files: copy one to
    change it, and name the copy by its path.
    """


def list_configs(given: Configs) -> None:
    """Print the list."""
    files, sweeps = config_files.read(), config_files.read(config_files.SWEEPS)
    groups: dict[str, list[ConfigFile]] = {name: [] for name in reversed(_GROUPS)}
    for file in files:
        text = f"{file.name} {file.title}"
        groups[next(name for name, has in _GROUPS.items() if re.search(has, text))] += [file]
    groups["SWEEPS (vit_jax sweep run NAME --out=DIR)"] = sweeps
    width = max(len(_name(file)) for file in [*files, *sweeps]) + 2
    for name, group in groups.items():
        print(name)
        for file in group:
            print(f"  {_name(file):{width}}{file.title}")
            indent = " " * (width + 4)
            for line in textwrap.wrap(", ".join(file.runs), 100 - len(indent)):
                print(indent + line)
        print()
    print("vit_jax train --config=NAME[:RUN] --workdir=DIR trains; --dry_run shows what it is")
    print(f"the files: {config_files.FOLDER}")


def _name(file: ConfigFile) -> str:
    return file.name + ":RUN" * bool(file.runs)


main = options.verb(Configs, list_configs)
