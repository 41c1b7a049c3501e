# SPDX-License-Identifier: Apache-2.0
"""Which settings of images of bands go together, and whether a source's images are as they say."""

import json
from pathlib import Path
from typing import Any

from vit_jax.data.config import DataConfig, reading
from vit_jax.data.images.bands import ALL
from vit_jax.data.images.decode import decode
from vit_jax.data.sources.base import Source
from vit_jax.errors import UserError, shown
from vit_jax.storage import foreign

_LOOKED_AT = 4  # examples, of which one must be as the config says


def check(cfg: DataConfig) -> None:
    """Refuse bands that are named twice; read `statistics` into the config.

    With them mean and std are in the config, which is saved with the run: the file is not read
    again, and the field is empty.
    """
    # A flag of a config gives B02,B03 as one text.
    cfg.bands = tuple(part.strip() for each in cfg.bands for part in each.split(","))
    if cfg.statistics:
        _read_statistics(cfg)
    if not cfg.bands:
        return
    if "all" in cfg.bands and cfg.bands != ALL:
        raise UserError(f"data.bands={_said(cfg.bands)}: all is every band; give it alone")
    for band in cfg.bands:
        if not band or cfg.bands.count(band) > 1:
            raise UserError(f"data.bands={_said(cfg.bands)} must name each band, and once")


def check_channels(cfg: DataConfig, channels: int) -> None:
    """Refuse other bands, or bands of pictures, than the model's channels."""
    if cfg.bands != ALL and len(cfg.bands) != channels:
        count = len(cfg.bands)
        what = f"data.bands={_said(cfg.bands)} are {count}, and model.channels={channels}"
        raise UserError(f"{what}; set model.channels={count}", field="model.channels")
    if any(each >= channels for each in cfg.bands_shown):
        most = f"the model has channels 0 to {channels - 1}"
        raise UserError(f"data.bands_shown={cfg.bands_shown}: {most}")


def check_source(source: Source, cfg: DataConfig, channels: int) -> None:
    """Raise UserError, with the first's fault, if none of a few images is as the config says."""
    first = ""
    count = len(source)
    for index in sorted({i * (count - 1) // (_LOOKED_AT - 1) for i in range(_LOOKED_AT)}):
        try:
            decode(source.read(index)["image"], channels, reading(cfg))
            return
        except (ValueError, OSError) as error:
            first = first or f"{source.example_id(index)}: {error}"
    if first:
        raise UserError(f"{first} (data.bands={_said(cfg.bands)})")


def _said(bands: tuple[str, ...]) -> str:
    return ",".join(bands)


def _read_statistics(cfg: DataConfig) -> None:
    file = Path(cfg.statistics).expanduser()
    where = f"data.statistics={shown(str(file))}"
    try:
        found: Any = json.loads(foreign.read(file))
        mean, std = (tuple(map(float, found[key])) for key in ("mean", "std"))
        dtype, bands = str(found["dtype"]), tuple(map(str, found["bands"]))
    except (ValueError, KeyError, TypeError, OSError) as error:
        made = "write it by `vit_jax prepare NAME --statistics --out=FILE.json`"
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{where} holds no statistics ({why}); {made}") from None
    usual = DataConfig()
    for key, own in (("mean", mean), ("std", std)):
        given = getattr(cfg, key)
        if given not in (getattr(usual, key), own):
            raise UserError(f"data.{key}={given}, and {where} has another; give one of the two")
    for key, own in (("dtype", dtype), ("bands", bands)):
        if getattr(cfg, key) != own:
            given = _said(getattr(cfg, key)) if key == "bands" else getattr(cfg, key)
            own = _said(own) if isinstance(own, tuple) else own
            raise UserError(f"{where} is of data.{key}={own or '()'}, and this is {given or '()'}")
    if min(std) <= 0:
        constant = [i for i, each in enumerate(std) if each <= 0]
        raise UserError(f"{where}: the channels {constant} have one value throughout; leave them")
    cfg.mean, cfg.std, cfg.statistics = mean, std, ""
