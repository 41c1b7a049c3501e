# SPDX-License-Identifier: Apache-2.0
"""Which learning rate is best at which width, standard against maximal update parametrisation.

    python -m benchmarks.mup [--seeds 0 1] [--widths 32 64 128]

Two measurements of small ViTs on scikit-learn's digits, both on two pictures of `docs/mup.md`. The
coordinate check (arXiv:2203.03466 appendix D.1): how far activations move in a few steps, by width.
The transfer: the training loss of short AdamW runs over a grid of learning rates; widths grow by
the number of heads, or by the width of a head.
"""

import argparse
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import math
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import record
from vit_jax import models, trees
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.optim import OptimConfig, Schedule, make_optimizer
from vit_jax.settings.durations import Clock

IMAGES = Path(__file__).parent.parent / "docs" / "images"
RESULTS = record.RESULTS / "mup_digits.json"
BASE, BASE_HEADS = 32, 4  # the width that all others are taken as a multiple of, and its heads
GROWTHS = {"heads": "number of heads grows", "head_dim": "width of a head grows"}
KINDS = {"standard": "standard", "mup": "maximal update"}
# The coordinate check's: wide heads and few tokens, so that little of what moves them is chance,
# which falls as the width grows.
CHECKED = {"init": Init.TIMM, "zero_head": False, "num_heads": 2, "image_size": (4, 4)}
LRS = tuple(2.0**-power for power in range(9, 3, -1))
_TEST = 360  # the last scans, as in benchmarks.digits
_BATCH, _EPOCHS = 32, 6
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The runs of one model and one learning rate.

    Attributes:
        growth: of `GROWTHS`: what the width grows by.
        kind: of `KINDS`.
        width: D.
        lr: the peak, as the config says it.
        loss: mean training loss of the last epoch, of each seed.
        top1: on the test scans, of each seed.
    """

    growth: str
    kind: str
    width: int
    lr: float
    loss: tuple[float, ...]
    top1: tuple[float, ...]


def get_model(width: int, kind: str, growth: str, **fields: Any) -> models.ViTConfig:
    """Return a small ViT, of 16 tokens, that has `BASE_HEADS` heads at the width `BASE`."""
    heads = BASE_HEADS if growth == "head_dim" else width * BASE_HEADS // BASE
    base = {"mup_base_dim": BASE, "mup_base_heads": BASE_HEADS} if kind == "mup" else {}
    small = {
        "patch": (2, 2),
        "image_size": (8, 8),
        "channels": 1,
        "num_classes": 10,
        "depth": 2,
        "class_token": False,
        "pool": Pool.GAP,
        "pos_embed": PosEmbed.LEARNED,
        "scan_unroll": 1,
    }
    shape = {"dim": width, "num_heads": heads, "mlp_dim": 4 * width}
    return models.ViTConfig(**{**small, **shape, **base, **fields})


def coordinates(
    model: models.ViTConfig, optim: OptimConfig, *, steps: int = 6, seeds: int = 2, batch: int = 8
) -> dict[str, float]:
    """Return the mean change of activations within `steps` steps on one batch of noise.

    Returns:
        By name: "positions" (of the table itself), "patches" (embedded), "attention" (logits, less
        their mean over the keys), "blocks" (the residual stream after each) and "logits".
    """
    module = models.create(model)

    def run(key: jax.Array) -> dict[str, jax.Array]:
        image_key, label_key, init_key = jax.random.split(key, 3)
        image = jax.random.normal(image_key, (batch, *models.input_shape(model)))
        label = jax.random.randint(label_key, (batch,), 0, model.num_classes)
        params, _ = models.init(module, model, init_key)
        clock = Clock(batch_size=batch, num_examples=batch, total_steps=steps)
        tx, _ = make_optimizer(optim, params, clock, models.growth(model))

        def step(carry: Any, _: None) -> tuple[Any, None]:
            params, state = carry
            grads = jax.grad(lambda p: _loss(module, p, image, label))(params)
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        (after, _), _ = jax.lax.scan(step, (params, tx.init(params)), None, length=steps)
        both = jax.tree.map(lambda *x: jnp.stack(x), params, after)
        seen = jax.vmap(lambda p: _activations(module, p, image))(both)
        return {name: jnp.abs(x[1] - x[0]).mean() for name, x in seen.items()}

    changes = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), seeds))
    return {name: float(value.mean()) for name, value in changes.items()}


def _loss(module: Any, params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
    logits = module.apply({"params": params}, image).logits
    return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()


def _activations(module: Any, params: Any, image: jax.Array) -> dict[str, jax.Array]:
    def wanted(layer: Any, method: str) -> bool:
        return method == "__call__" and layer.name in ("patch_embed", "blocks")

    out, kept = module.apply(
        {"params": params}, image, mutable=["intermediates"], capture_intermediates=wanted
    )
    found = dict(trees.named_leaves(kept["intermediates"]))
    logits = jnp.log(found["blocks/attn/weights/0"])
    return {
        "positions": params["pos_embed"],
        "patches": found["patch_embed/__call__/0"],
        "attention": logits - logits.mean(axis=-1, keepdims=True),
        "blocks": found["blocks/__call__/0/0"],
        "logits": out.logits,
    }


def slope(widths: Sequence[int], changes: Sequence[float | None]) -> float:
    """Return the power of the width that changes grow with; infinite where one is not finite.

    JSON has no number for such a one: None.
    """
    values = np.asarray(changes, float)
    if not np.isfinite(values).all():
        return math.inf
    return float(np.polyfit(np.log(widths), np.log(values), 1)[0])


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return all scans [1797, 8, 8, 1], in [-1, 1], and their labels."""
    from sklearn import datasets

    image, label = map(np.asarray, datasets.load_digits(return_X_y=True))
    return image.reshape(-1, 8, 8, 1).astype(np.float32) / 8 - 1, label.astype(np.int32)


def train(
    model: models.ViTConfig, lrs: Sequence[float], seeds: Sequence[int], epochs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the last epoch's mean training loss and the test top-1, each [lrs, seeds].

    All rates are trained side by side: with a rate of 1 the optimizer's update, decay included, is
    what a rate multiplies.
    """
    module = models.create(model)
    image, label = (jnp.asarray(x) for x in load_digits())
    count = image.shape[0] - _TEST
    per_epoch = count // _BATCH
    clock = Clock(batch_size=_BATCH, num_examples=count, total_steps=epochs * per_epoch)
    cfg = OptimConfig(lr=1.0, weight_decay=0.05, warmup="10%", schedule=Schedule.COSINE)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None, None))
    def run(lr: jax.Array, key: jax.Array, order: jax.Array) -> tuple[jax.Array, jax.Array]:
        params, _ = models.init(module, model, key)
        tx, _ = make_optimizer(cfg, params, clock, models.growth(model))

        def step(carry: Any, rows: jax.Array) -> tuple[Any, jax.Array]:
            params, state = carry
            loss, grads = jax.value_and_grad(lambda p: _loss(module, p, image[rows], label[rows]))(
                params
            )
            updates, state = tx.update(grads, state, params)
            updates = jax.tree.map(lambda u: lr * u, updates)
            return (optax.apply_updates(params, updates), state), loss

        (params, _), losses = jax.lax.scan(step, (params, tx.init(params)), order)
        guess = module.apply({"params": params}, image[count:]).logits.argmax(axis=-1)  # pyright: ignore[reportAttributeAccessIssue]
        return losses[-per_epoch:].mean(), (guess == label[count:]).mean()

    results = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        order = [rng.permutation(count)[: per_epoch * _BATCH] for _ in range(epochs)]
        rows = jnp.asarray(np.concatenate(order).reshape(-1, _BATCH))
        results.append(run(jnp.asarray(lrs), jax.random.key(seed), rows))
    loss, top1 = (np.stack(x, axis=1) for x in zip(*jax.device_get(results), strict=True))
    return loss, top1


def transfer(widths: Sequence[int], seeds: Sequence[int], epochs: int) -> list[Row]:
    """Train every model with every rate; at the base's width all four are one and the same."""
    rows = []
    base: tuple[np.ndarray, np.ndarray] | None = None
    for growth in GROWTHS:
        for kind in KINDS:
            for width in widths:
                start = time.process_time()
                if width == BASE and base is not None:
                    loss, top1 = base
                else:
                    loss, top1 = train(get_model(width, kind, growth), LRS, seeds, epochs)
                base = (loss, top1) if width == BASE else base
                for i, lr in enumerate(LRS):
                    rows.append(
                        Row(
                            growth=growth,
                            kind=kind,
                            width=width,
                            lr=lr,
                            loss=tuple(map(float, loss[i])),
                            top1=tuple(map(float, top1[i])),
                        )
                    )
                took = time.process_time() - start
                print(f"{growth} {kind} {width}: {took:.0f} CPU s", flush=True)
    return rows


def best(rows: Sequence[Row], growth: str, kind: str, width: int) -> Row:
    """Return the learning rate of the lowest mean loss."""
    mine = [r for r in rows if (r.growth, r.kind, r.width) == (growth, kind, width)]
    return min(mine, key=_mean_loss)


def _mean_loss(row: Row) -> float:
    mean = statistics.fmean(row.loss)
    return mean if math.isfinite(mean) else math.inf


def check(widths: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Return the coordinate check: by parametrisation and activation, a number for each width."""
    optim = OptimConfig(lr=0.01, schedule=Schedule.CONSTANT)
    found: dict[str, dict[str, list[float]]] = {}
    for kind in KINDS:
        fields = {**CHECKED, "mup_base_heads": CHECKED["num_heads"] if kind == "mup" else 0}
        each = [coordinates(get_model(w, kind, "head_dim", **fields), optim) for w in widths]
        found[kind] = {name: [changes[name] for changes in each] for name in each[0]}
    return found


def powers(widths: Sequence[int], found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Lay out, as a Markdown table, the powers of the width that changes grow with."""
    names = list(next(iter(found.values())))
    lines = [["parametrisation", *names], ["---"] * (len(names) + 1)]
    for kind, changes in found.items():
        lines.append([KINDS[kind], *(f"{slope(widths, changes[name]):+.2f}" for name in names)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown(rows: Sequence[Row], widths: Sequence[int]) -> str:
    """Lay out, as a Markdown table, the best rate of each width and the loss of the base's best."""
    head = ["width grows by", "parametrisation"]
    head += [f"best lr at {width}" for width in widths]
    head += [f"loss at {widths[-1]}: its best lr", f"the best lr of {widths[0]}"]
    lines = [head, ["---"] * len(head)]
    for growth in GROWTHS:
        for kind in KINDS:
            found = [best(rows, growth, kind, width) for width in widths]
            same = next(
                r
                for r in rows
                if (r.growth, r.kind, r.width, r.lr) == (growth, kind, widths[-1], found[0].lr)
            )
            cells = [f"2^{math.log2(row.lr):.0f}" for row in found]
            cells += [f"{_mean_loss(row):.3f}" for row in (found[-1], same)]
            lines.append([GROWTHS[growth].split(" grows")[0], KINDS[kind], *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def draw_transfer(rows: Sequence[Row], widths: Sequence[int], path: Path) -> None:
    """Draw loss against rate, a line for each width, its best marked."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        2, 2, figsize=(8, 6), layout="constrained", sharex=True, sharey=True
    )
    for growth, line in zip(GROWTHS, axes, strict=True):
        for kind, panel in zip(KINDS, line, strict=True):
            for i, width in enumerate(widths):
                mine = [r for r in rows if (r.growth, r.kind, r.width) == (growth, kind, width)]
                color = plt.get_cmap("viridis")(i / max(len(widths), 1))
                x, y = [r.lr for r in mine], [_mean_loss(r) for r in mine]
                panel.plot(x, y, ".-", color=color, label=f"width {width}")
                top = best(rows, growth, kind, width)
                panel.plot([top.lr], [_mean_loss(top)], "*", color=color, markersize=14)
            panel.set(xscale="log", yscale="log", title=f"{KINDS[kind]}, {GROWTHS[growth]}")
            panel.grid(alpha=0.3)
    rates = sorted({row.lr for row in rows})
    for panel in axes[-1]:
        panel.set_xticks(rates, [f"2^{math.log2(rate):.0f}" for rate in rates])
        panel.minorticks_off()
        panel.set_xlabel("peak learning rate")
    for panel in axes[:, 0]:
        panel.set_ylabel("training loss, last epoch")
    axes[0, 0].legend()
    _save(figure, path)


def draw_check(
    found: Mapping[str, Mapping[str, Sequence[float]]], widths: Sequence[int], path: Path
) -> None:
    """Draw the change of each kind of activation against the width."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
    for kind, panel in zip(KINDS, axes, strict=True):
        for name, changes in found[kind].items():
            panel.plot(widths, changes, ".-", label=name)
        panel.set(xscale="log", yscale="log", title=KINDS[kind], xlabel="width")
        panel.set_xticks(widths, [str(width) for width in widths])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("mean change in 6 steps")
    axes[0].legend(fontsize=8)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def read(path: Path) -> list[Row]:
    """Read the rows of a results file."""
    rows = [Row(**row) for row in json.loads(path.read_text())["rows"]]
    # JSON has no number for a loss that is not finite.
    numbers = [tuple(math.nan if loss is None else loss for loss in row.loss) for row in rows]
    return [
        dataclasses.replace(row, loss=loss, top1=tuple(row.top1))
        for row, loss in zip(rows, numbers, strict=True)
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--widths", type=int, nargs="+", default=[BASE, 64, 128])
    parser.add_argument("--epochs", type=int, default=_EPOCHS)
    parser.add_argument("--only", choices=["check", "transfer"], help="keep the other as it was")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--pictures", type=Path, default=IMAGES)
    args = parser.parse_args(argv)
    from vit_jax.process import startup

    startup.configure()
    content: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    if args.only != "transfer":
        checked = [*args.widths, 2 * args.widths[-1]]
        found = check(checked)
        content["coordinates"] = {"widths": checked, **found}
        print(powers(checked, found), flush=True)
        draw_check(found, checked, args.pictures / "mup_coordinates.png")
    if args.only != "check":
        rows = transfer(args.widths, args.seeds, args.epochs)
        print(markdown(rows, args.widths))
        content |= {"widths": args.widths, "seeds": args.seeds, "epochs": args.epochs}
        content["rows"] = [dataclasses.asdict(row) for row in rows]
        draw_transfer(rows, args.widths, args.pictures / "mup_transfer.png")
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    content |= {
        "device": record.device(),
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), **versions},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(trees.finite(content), indent=1) + "\n")
    print(f"written to {args.out} and {args.pictures}")


if __name__ == "__main__":
    main()
