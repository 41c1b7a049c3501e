# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax convert --from ... --to timm:FILE`: weights under timm's names."""

import re
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags
from ml_collections import config_flags

from vit_jax import errors, models, weights
from vit_jax.cli import flags as cli_flags
from vit_jax.config import check_path, coerce
from vit_jax.errors import UserError
from vit_jax.weights import export
from vit_jax.weights.load import CHECKPOINT, split

_HELP = """usage: python -m vit_jax convert --from=WEIGHTS --to=timm:FILE.safetensors [flags]

Writes weights under timm's names and shapes; timm's model of the same sizes loads the file with
strict=True. Values are unchanged, but for tables and kernels that --model.FIELD brings to size.

  --from=ckpt:DIR[@STEP]  a run of our own; @best and @latest too; the best if it keeps that
  --from=npz:FILE         a file of Google's vision_transformer, big_vision and so on
  --from=timm:FILE        a file under timm's or the authors' names
  --model=VARIANT         what an npz: or timm: file holds (vit_b16_384, swin_t, ...); a run knows
  --model.FIELD=VALUE     change a field of it
  --ema                   take a run's moving average of the parameters
  --force                 replace a file that is there
  --debug                 show the traceback of an error

  python -m vit_jax convert --from=ckpt:runs/vit_mu_digits --to=timm:digits.safetensors
  python -m vit_jax convert --from=npz:ViT-B_16.npz --to=timm:vit_b16_in21k.safetensors \\
      --model=vit_b16 --model.num_classes=21843"""


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help", "-help") for argument in argv[1:]):
        print(_HELP)
        return 0

    def command() -> int:
        jax.config.update("jax_platforms", "cpu")  # nothing here is worth waiting for a GPU
        values = flags.FlagValues()
        flags.DEFINE_string("from", "", "The weights to read.", flag_values=values)
        flags.DEFINE_string("to", "", "timm:FILE.safetensors.", flag_values=values)
        for name in ("ema", "force", "debug"):
            flags.DEFINE_bool(name, False, "See --help.", flag_values=values)
        # Before the rest: which fields --model.FIELD may name depends on it.
        source = cli_flags.value_of("from", argv)
        if not source:
            raise UserError("which weights? add --from=ckpt:DIR, --from=npz:FILE or timm:FILE")
        cfg = _model(argv, values, source)
        ema, force = bool(values["ema"].value), bool(values["force"].value)
        file = _target(str(values["to"].value))
        export.check(cfg)
        export.check_target(file, overwrite=force)
        state = weights.to_timm(weights.load(source, cfg, ema=ema), cfg)
        size = export.save(file, state, overwrite=force)
        print(f"{file}: {len(state)} tensors, {size:,} bytes, from {source}")
        return 0

    return cli_flags.run(command, argv)


def _model(argv: Sequence[str], values: flags.FlagValues, source: str) -> Any:
    """Return the config of the model in `source`, with the command line's changes."""
    variant = cli_flags.value_of("model", argv)
    scheme, path = split(source)
    if scheme == CHECKPOINT:
        if variant is not None:
            raise UserError(f"{source} knows its model; leave out --model={variant}")
        from vit_jax.weights.ckpt import Checkpoint  # late: Orbax takes long to import

        base = Checkpoint(path).model
    elif variant is None:
        raise UserError(f"which model does {source} hold? add --model=VARIANT, such as vit_b16_384")
    else:
        base = models.variant(variant)
    rest = _without_variant(argv)
    for argument in rest:
        field = re.match(r"--?model\.([^=]+)", argument)
        if field:
            check_path(base, field[1], root="model")
    config_flags.DEFINE_config_dataclass("model", base, flag_values=values, sys_argv=rest)
    cli_flags.parse(rest, values)
    cfg: Any = values["model"].value
    coerce(cfg, "model.")
    models.create(cfg)
    return cfg


def _without_variant(argv: Sequence[str]) -> list[str]:
    # `--model=NAME` and `--model NAME` are ours; `--model.FIELD` is for the flags' own parser.
    rest = list(argv)
    for i, argument in enumerate(rest):
        if re.fullmatch(r"--?model(=.*)?", argument):
            return rest[:i] + rest[i + (1 if "=" in argument else 2) :]
    return rest


def _target(to: str) -> str:
    scheme, _, path = to.partition(":")
    if not to:
        raise UserError("where to? add --to=timm:FILE.safetensors")
    if scheme != "timm":
        raise errors.unknown("kind of weights to write in", to, ["timm:FILE.safetensors"])
    return path
