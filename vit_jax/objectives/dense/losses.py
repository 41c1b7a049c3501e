# SPDX-License-Identifier: Apache-2.0
"""Losses of masks and depths: set prediction by Hungarian matching at sampled points, and silog.

Mask2Former's loss (arXiv:2112.01527, section 3.3 and appendix A) as EoMT trains with it
(arXiv:2503.19108): Q queries say a class and a mask each, a matching gives each target to the query
that fits it best, and masks are compared at points instead of at every pixel. All is pure, has
static shapes and computes in float32 (float64 of float64).

An objective calls three functions, and the rest are their parts:

    targets = segment_targets(batch[SEGMENTS], batch[SEGMENT_CLASS], width)    # or label_targets
    shares = row_shares(targets.classes, cfg, queries)    # in `prepare`, of the global batch
    loss, metrics = set_loss(classes, masks, targets, shares, cfg, rng)    # in `loss`

`row_shares` has what the loss divides by, the number of masks and the weights of all queries of the
global batch, as a number for each row: so the loss is a mean over rows, and a batch may be cut.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Num, UInt8

from vit_jax.devices.sharding import BATCH_AXES, auto_mesh, batch_shards
from vit_jax.settings.fields import value

_EXACT = jax.lax.Precision.HIGHEST
_LARGEST = 1e10  # what a cost is held to, and what a NaN becomes: the algorithm must end


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class MaskLossConfig:
    """Costs and losses of masks that queries say; the defaults are Mask2Former's and EoMT's.

    Attributes:
        class_weight: of the cross-entropy and of the cost of a class.
        mask_weight: of the binary cross-entropy of pixels.
        dice_weight: of the dice loss.
        no_object: the weight of a query without a target beside that of one with it.
        points: at which a pair of masks is compared.
        oversample: how many candidates are drawn for each point.
        uncertain: the share of the points that are the least certain candidates; the others are
            drawn evenly.
    """

    class_weight: float = value(2.0, least=0)
    mask_weight: float = value(5.0, least=0)
    dice_weight: float = value(5.0, least=0)
    no_object: float = value(0.1, above=0)
    points: int = value(12544, least=1)
    oversample: float = value(3.0, least=1)
    uncertain: float = value(0.75, least=0, most=1)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("classes", "bits", "label_map"),
    meta_fields=("width",),
)
@dataclasses.dataclass(frozen=True)
class MaskTargets:
    """The masks that a batch should have, in one of two forms; the other is None.

    Attributes:
        classes: [B, T] of each target; -1 is none.
        bits: uint8 [B, T, H, ceil(W / 8)] of the masks, most significant first (`packbits`).
        label_map: int [B, H, W]; target t is where the map has its class.
        width: W in pixels.
    """

    classes: Int[Array, "*B T"]
    bits: UInt8[Array, "*B T H bytes"] | None
    label_map: Int[Array, "*B H W"] | None
    width: int


def segment_targets(
    bits: UInt8[Array, "B T H bytes"], classes: Int[Array, "B T"], width: int
) -> MaskTargets:
    """Return the targets of the batch fields SEGMENTS and SEGMENT_CLASS of images `width` wide."""
    return MaskTargets(classes, bits, None, width)


def label_targets(
    label_map: Int[Array, "B H W"], num_classes: int, most: int | None = None
) -> MaskTargets:
    """Return a target for each class that the batch field LABEL_MAP has in an image.

    Pixels of no class (negative) are in none of the masks. An image has `most` targets, by
    default one for every class; where it has more classes, those with the largest ids are left out.
    """
    every = jnp.arange(num_classes)[None]
    present = label_map[:, None] == every[:, :, None, None].astype(label_map.dtype)
    first = jnp.sort(jnp.where(present.any(axis=(2, 3)), every, num_classes), axis=1)[:, :most]
    classes = jnp.where(first < num_classes, first, -1).astype(jnp.int32)
    return MaskTargets(classes, None, label_map, label_map.shape[-1])


def row_shares(
    classes: Int[Array, "B T"], cfg: MaskLossConfig, queries: int
) -> dict[str, Float[Array, " B"]]:
    """Return what each row's sums of masks and of classes are multiplied by.

    The mean over rows of "mask_share" times a row's sum is the sum over the global batch divided by
    its number of masks, at least 1; that of "class_share" is the mean over all queries, weighted by
    `no_object` where they have no target.
    """
    rows = len(classes)
    masks = jnp.minimum((classes >= 0).sum(axis=1), queries).sum().astype(jnp.float32)
    weights = masks + cfg.no_object * (rows * queries - masks)
    each = {"mask_share": rows / jnp.maximum(masks, 1), "class_share": rows / weights}
    return {name: jnp.full(rows, share) for name, share in each.items()}


def set_loss(
    class_logits: Float[Array, "M B Q C"],
    mask_logits: Float[Array, "M B Q h w"],
    targets: MaskTargets,
    shares: dict[str, Float[Array, " B"]],
    cfg: MaskLossConfig,
    rng: jax.Array,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Return the sum of the weighted losses of M predictions, and the last one's three terms.

    Each prediction is matched anew, at points of its own. The last of the C = K + 1 classes is "no
    object". Masks may have any size: points are relative to the image.

    Returns:
        The loss, and "class_loss", "mask_loss" and "dice_loss" of the last prediction, unweighted.
    """

    def of_one(total: Array, xs: tuple[Array, Array, Array]) -> tuple[Array, dict[str, Array]]:
        classes, masks, key = xs
        terms = _prediction_loss(classes, masks, targets, shares, cfg, key)
        weights = (cfg.class_weight, cfg.mask_weight, cfg.dice_weight)
        total += sum(w * term for w, term in zip(weights, terms.values(), strict=True))
        return total, terms

    # One program for all predictions: the matching alone is a few hundred operations.
    keys = jax.random.split(rng, len(class_logits))
    start = jnp.zeros((), jnp.promote_types(class_logits.dtype, jnp.float32))
    total, terms = jax.lax.scan(of_one, start, (class_logits, mask_logits, keys))
    return total, {name: values[-1] for name, values in terms.items()}


def _prediction_loss(
    class_logits: Float[Array, "B Q C"],
    mask_logits: Float[Array, "B Q h w"],
    targets: MaskTargets,
    shares: dict[str, Float[Array, " B"]],
    cfg: MaskLossConfig,
    rng: jax.Array,
) -> dict[str, Float[Array, ""]]:
    """Return the class, mask and dice losses of one prediction, without their weights."""
    shared, own = jax.random.split(rng)
    fixed_classes, fixed_masks = jax.lax.stop_gradient((class_logits, mask_logits))
    points = jax.random.uniform(shared, (len(class_logits), cfg.points, 2))
    costs = jax.vmap(functools.partial(matching_costs, cfg=cfg))
    query = match(costs(fixed_classes, fixed_masks, targets, points), targets.classes >= 0)
    of_pairs = jax.vmap(_rows)(fixed_masks, query)
    points = uncertain_points(of_pairs, own, cfg)
    # Its sums are computed again for the gradient: they take more memory than all masks.
    pairs = jax.checkpoint(jax.vmap(pair_losses))
    mask, dice = pairs(mask_logits, targets, query, points)
    entropy = jax.vmap(functools.partial(class_losses, no_object=cfg.no_object))
    classes = entropy(class_logits, targets.classes, query)
    return {
        "class_loss": (shares["class_share"] * classes).mean(),
        "mask_loss": (shares["mask_share"] * mask).mean(),
        "dice_loss": (shares["mask_share"] * dice).mean(),
    }


def matching_costs(
    class_logits: Float[Array, "Q C"],
    mask_logits: Float[Array, "Q h w"],
    targets: MaskTargets,
    points: Float[Array, "P 2"],
    cfg: MaskLossConfig,
) -> Float[Array, "Q T"]:
    """Return what it costs to give each target of one image to each query.

    The cost is a weighted sum of minus the probability of the target's class, the mean binary
    cross-entropy of the masks at the points, and their dice loss there.
    """
    x = sample(mask_logits, points[None])
    y = sample_targets(targets, points[None]).astype(x.dtype)
    p = jax.nn.sigmoid(x)
    product = functools.partial(jnp.matmul, precision=_EXACT)
    entropy = (jax.nn.softplus(x).sum(axis=-1)[:, None] - product(x, y.T)) / len(points)
    dice = _dice(product(p, y.T), p.sum(axis=-1)[:, None] + y.sum(axis=-1)[None])
    said = jax.nn.softmax(_full(class_logits), axis=-1)[:, jnp.maximum(targets.classes, 0)]
    return cfg.mask_weight * entropy + cfg.dice_weight * dice - cfg.class_weight * said


def match(cost: Float[Array, "B Q T"], valid: Bool[Array, "B T"]) -> Int[Array, "B T"]:
    """Return the query of each target by which the sum of costs is least; -1 for no target.

    Where there are more valid targets than queries, the first Q are matched. Each device matches
    the images that it holds: its loops would wait for all others in each iteration.
    """
    mesh = auto_mesh()
    matched = jax.vmap(_match_one)
    if not mesh.empty and len(cost) % batch_shards(mesh) == 0:
        rows = PartitionSpec(BATCH_AXES)
        matched = jax.shard_map(
            matched, mesh=mesh, in_specs=(rows, rows), out_specs=rows, check_vma=False
        )
    return matched(cost, valid)


def _match_one(cost: Float[Array, "Q T"], valid: Bool[Array, " T"]) -> Int[Array, " T"]:
    queries, count = cost.shape
    cost = jnp.clip(jnp.nan_to_num(cost, nan=_LARGEST), -_LARGEST, _LARGEST)
    # A column of equal costs does not change the others' matching, if all columns find a query.
    # Valid targets come first: each of the others then takes the algorithm one iteration.
    order = jnp.argsort(~valid, stable=True)[: min(queries, count)]
    kept = jnp.where(valid[None], cost, 0)[:, order]
    rows, columns = optax.assignment.hungarian_algorithm(kept)
    query = jnp.full(count, -1, jnp.int32).at[order[columns]].set(rows.astype(jnp.int32))
    return jnp.where(valid, query, -1)


def uncertain_points(
    logits: Float[Array, "B T h w"], rng: jax.Array, cfg: MaskLossConfig
) -> Float[Array, "B T P 2"]:
    """Return points (x, y) in [0, 1] of each mask, most of them where it is least certain.

    A share `uncertain` of them has the logits nearest to 0 among `oversample` times as many as all
    points; the others are drawn evenly (PointRend, arXiv:1912.08193, section 3.1).
    """
    candidates, evenly = jax.random.split(rng)
    count = int(cfg.uncertain * cfg.points)
    drawn = jax.random.uniform(candidates, (*logits.shape[:2], int(cfg.oversample * cfg.points), 2))
    doubt = -jnp.abs(jax.vmap(sample)(logits, drawn))
    _, best = jax.lax.top_k(doubt, count)
    chosen = jnp.take_along_axis(drawn, best[..., None], axis=2)
    others = jax.random.uniform(evenly, (*logits.shape[:2], cfg.points - count, 2))
    return jax.lax.stop_gradient(jnp.concatenate([chosen, others], axis=2))


def pair_losses(
    mask_logits: Float[Array, "Q h w"],
    targets: MaskTargets,
    query: Int[Array, " T"],
    points: Float[Array, "T P 2"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the sums over one image's pairs of binary cross-entropy and of dice loss.

    The binary cross-entropy of a pair is its mean over the pair's points.
    """
    x = sample(_rows(mask_logits, query), points)
    y = sample_targets(targets, points).astype(x.dtype)
    entropy = (jax.nn.softplus(x) - x * y).mean(axis=-1)
    p = jax.nn.sigmoid(x)
    dice = _dice((p * y).sum(axis=-1), (p + y).sum(axis=-1))
    paired = query >= 0
    return jnp.where(paired, entropy, 0).sum(), jnp.where(paired, dice, 0).sum()


def class_losses(
    logits: Float[Array, "Q C"],
    classes: Int[Array, " T"],
    query: Int[Array, " T"],
    no_object: float,
) -> Float[Array, ""]:
    """Return the weighted sum over one image's queries of the cross-entropy of their classes.

    The last class is of queries without a target, which weigh `no_object`.
    """
    queries, last = logits.shape[0], logits.shape[1] - 1
    where = jnp.where(query >= 0, query, queries)  # out of bounds: dropped
    wanted = (
        jnp.full(queries, last, jnp.int32).at[where].set(classes.astype(jnp.int32), mode="drop")
    )
    weight = jnp.where(wanted == last, no_object, 1.0)
    said = jax.nn.log_softmax(_full(logits), axis=-1)
    return -(weight * jnp.take_along_axis(said, wanted[:, None], axis=1)[:, 0]).sum()


def sample(maps: Float[Array, "N h w"], points: Float[Array, "n P 2"]) -> Float[Array, "N P"]:
    """Return the maps' values at points (x, y) in [0, 1], bilinear between centres of pixels.

    It is PyTorch's `grid_sample` without `align_corners`: beyond the edge all is 0. n is N, or 1
    for points that all maps share.
    """
    height, width = maps.shape[1:]
    y, x, weight = _corners(points, (height, width))
    found = _taken(_full(maps).reshape(len(maps), -1), y * width + x)
    return (found * weight).sum(axis=-1)


def sample_targets(targets: MaskTargets, points: Float[Array, "n P 2"]) -> Float[Array, "T P"]:
    """Return one image's target masks at points as `sample` does, n being T or 1."""
    if targets.bits is not None:
        bits = targets.bits
        y, x, weight = _corners(points, (bits.shape[1], targets.width))
        found = _taken(bits.reshape(len(bits), -1), y * bits.shape[2] + x // 8)
        inside = (found >> (7 - x % 8).astype(jnp.uint8)) & 1
    else:
        assert targets.label_map is not None
        y, x, weight = _corners(points, targets.label_map.shape)
        found = targets.label_map.reshape(-1)[y * targets.width + x]
        inside = found == targets.classes[:, None, None].astype(found.dtype)
    return (inside * weight).sum(axis=-1)


def _corners(
    points: Float[Array, "n P 2"], size: tuple[int, ...]
) -> tuple[Int[Array, "n P 4"], Int[Array, "n P 4"], Float[Array, "n P 4"]]:
    """Return rows and columns of the four pixels around each point, and their weights."""
    places, weights = [], []
    for axis, side in ((1, size[0]), (0, size[1])):
        at = points[..., axis] * side - 0.5
        first = jnp.floor(at)
        share = at - first
        near = jnp.stack([first, first + 1], axis=-1)
        weight = jnp.stack([1 - share, share], axis=-1)
        weights.append(jnp.where((near >= 0) & (near < side), weight, 0))
        places.append(jnp.clip(near, 0, side - 1).astype(jnp.int32))
    shape = (*points.shape[:-1], 4)
    y = jnp.repeat(places[0], 2, axis=-1)
    x = jnp.tile(places[1], (1, 1, 2))
    return y, x, (weights[0][..., :, None] * weights[1][..., None, :]).reshape(shape)


def _taken(rows: Num[Array, "N pixels"], places: Int[Array, "n P 4"]) -> Num[Array, "N P 4"]:
    """Return values of each row at its places, or at those that all rows share."""
    if len(places) == 1 != len(rows):
        return rows[:, places[0]]
    flat = places.reshape(len(rows), -1)
    return jnp.take_along_axis(rows, flat, axis=1).reshape(places.shape)


def _rows(masks: Float[Array, "Q h w"], query: Int[Array, " T"]) -> Float[Array, "T h w"]:
    """Return each target's mask; that of no target is any."""
    return masks[jnp.maximum(query, 0)]


def _dice(both: Float[Array, "*any"], either: Float[Array, "*any"]) -> Float[Array, "*any"]:
    return 1 - (2 * both + 1) / (either + 1)


def _full(x: Float[Array, "*any"]) -> Float[Array, "*any"]:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def silog(
    depth: Float[Array, "B H W"],
    truth: Float[Array, "B H W"],
    mean_weight: float | Float[Array, ""] = 0.15,
    variance_weight: float | Float[Array, ""] = 1.0,
    offset: float = 1e-3,
) -> Float[Array, ""]:
    """Return the scale-invariant loss of depths where the truth is known (above 0).

    With g = log(depth + offset) - log(truth + offset) over all known pixels of the batch it is
    sqrt(variance_weight var(g) + mean_weight mean(g)^2), the variance unbiased (Eigen et al. 2014,
    arXiv:1406.2283, section 3.2, as DINOv2 and v3 train with it: their first 100 steps have a
    variance_weight of 0). A batch in which nothing is known has 0.
    """
    known = truth > 0
    count = known.sum()
    # Chosen before the logarithm: the gradient of what is not known would be NaN of a NaN.
    said, true = (jnp.log(jnp.where(known, _full(x), 1) + offset) for x in (depth, truth))
    g = said - true
    mean = jnp.where(known, g, 0).sum() / jnp.maximum(count, 1)
    variance = jnp.where(known, jnp.square(g - mean), 0).sum() / jnp.maximum(count - 1, 1)
    square = variance_weight * variance + mean_weight * jnp.square(mean)
    # A maximum inside the root: the gradient of a root at 0 is infinite.
    return jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny)) * (count > 0)
