# SPDX-License-Identifier: Apache-2.0
"""Self-distillation without labels: DINO; with iBOT, KoLeo and Gram anchoring, DINOv2 and v3.

A student learns from small and large crops of an image what a teacher, the moving average of its
own parameters, says of the large ones (arXiv:2104.14294, arXiv:2304.07193, arXiv:2508.10104). The
teacher's targets are centred (DINO) or balanced (SwAV, arXiv:2006.09882), and no gradient passes
through them: a teacher is not trained.

The functions of losses and targets see the global batch, so their result does not depend on how
many devices hold it, and compute in float32.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.scipy.special import entr, logsumexp
from jaxtyping import Array, Float, Float32, Int, Num

from vit_jax import data, models
from vit_jax.cost.flops import count, train_flops
from vit_jax.data import View, reading
from vit_jax.models import base
from vit_jax.models.decoder import ProjectionHead
from vit_jax.objectives import gram, hiding
from vit_jax.objectives.base import Aux, Batch, Context, Objective
from vit_jax.objectives.dino_config import Balance, DinoConfig, HeadConfig
from vit_jax.objectives.hiding import block_masks, gathered, mask_counts

Scalar = float | Float[Array, ""]

_EXACT = jax.lax.Precision.HIGHEST
Centre = Float[Array, " K"] | Float[Array, "1 K"]
Weights = Num[Array, " N"] | None
_GLOBAL, _LOCAL = ("global_1", "global_2"), "local"
_GRAM = ("gram_1", "gram_2")  # the same crops for the copy of the teacher
_CENTRE_MOMENTUM = 0.9
_COLLAPSED = 0.05  # of log K, and of a rank above 1: learning runs stay far above both
_HEAD, _PATCH_HEAD, _TOKEN = "dino_head", "ibot_head", "mask_token"


def dino_loss(
    student: Float[Array, "S B K"],
    targets: Float[Array, "T B K"],
    temperature: Scalar,
    *,
    skip_same: bool,
) -> Float32[Array, ""]:
    """Return the mean cross-entropy, in nats, over all pairs of a student's and a teacher's crop.

    The loss of a pair is -sum_k t_k log softmax(s / temperature)_k, averaged over the images (DINO,
    arXiv:2104.14294, equation 3).

    Args:
        student: logits of S crops of each image.
        targets: of T crops of the same images; no gradient passes through them.
        temperature: the student's.
        skip_same: leave out the pairs with equal index, whose crop is the same.

    Raises ValueError: no pair is left.
    """
    pairs = 1 - jnp.eye(len(student), len(targets)) if skip_same else 1.0
    count = len(student) * len(targets) - skip_same * min(len(student), len(targets))
    if not count:
        raise ValueError("one crop of the student and the same of the teacher make no pair")
    log_p = _log_softmax(student, temperature)
    agreement = jnp.einsum("sbk,tbk->st", log_p, _fixed(targets), precision=_EXACT)
    return -(pairs * agreement).sum() / (count * student.shape[1])


def ibot_loss(
    student: Float[Array, "M K"],
    targets: Float[Array, "M K"],
    weights: Float[Array, " M"],
    temperature: Scalar,
    num_images: int | Num[Array, ""],
) -> Float32[Array, ""]:
    """Return the cross-entropy of masked patches, in nats, their mean of each image over images.

    It is the weighted sum of -sum_k t_k log softmax(s / temperature)_k, divided by the number of
    images (iBOT, arXiv:2111.07832, equation 2, with the mean that its code takes of each image).

    Args:
        student: logits of masked patches, of all images in one buffer.
        targets: of the same patches; no gradient passes through them.
        weights: 1 / (number of patches masked in its image), and 0 for what fills the buffer.
        temperature: the student's.
        num_images: all images of the batch, those without a masked patch too.
    """
    entropies = -(_fixed(targets) * _log_softmax(student, temperature)).sum(axis=-1)
    return (_fixed(weights) * entropies).sum() / num_images


def koleo(features: Float[Array, "B D"], eps: float = 1e-8) -> Float32[Array, ""]:
    """Return the Kozachenko-Leonenko regulariser, small where features spread over the sphere.

    It is -mean log(|x_i - x_j + eps| + eps), with x of unit length and x_j the nearest to x_i among
    the others (arXiv:1806.03198, section 3.2; DINOv2, section 4). A gradient passes through both,
    none through the choice. An example alone in its batch is its own neighbour.
    """
    # Differs from paper: DINOv2's code seeks a neighbour in one device's share of the batch.
    x = features.astype(jnp.float32)
    # A maximum inside the root: the gradient of a root at 0 is infinite.
    x /= jnp.sqrt(jnp.maximum((x * x).sum(axis=-1, keepdims=True), eps**2))
    unit = jax.lax.stop_gradient(x)
    similarity = jnp.matmul(unit, unit.T, precision=_EXACT)
    itself = jnp.eye(len(unit), dtype=bool)
    nearest = jnp.where(itself, -jnp.inf, similarity).argmax(axis=-1)
    apart = x - x[nearest] + eps
    distance = jnp.sqrt(jnp.maximum((apart * apart).sum(axis=-1), jnp.finfo(jnp.float32).tiny))
    return -jnp.log(distance + eps).mean()


def feature_rank(features: Float[Array, "B D"]) -> Float32[Array, ""]:
    """Return the participation ratio (tr C)^2 / tr(C^2) of the features' covariance C.

    It is 1 where all features lie on a line, D where they vary alike in all directions (Gao et al.
    2017, doi:10.1101/214262), and 0 where they are equal.
    """
    x = features.astype(jnp.float32)
    x -= x.mean(axis=0, keepdims=True)
    trace = (x * x).sum()
    # The matrices of products over examples and over channels have the same trace of the square.
    rows = x if len(x) < x.shape[1] else x.T
    share = jnp.matmul(rows, rows.T, precision=_EXACT) / jnp.where(trace > 0, trace, 1.0)
    return jnp.where(trace > 0, 1 / jnp.where(trace > 0, (share * share).sum(), 1.0), 0.0)


def _log_softmax(logits: Float[Array, "*rows K"], temperature: Scalar) -> Float32[Array, "*rows K"]:
    return jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, axis=-1)


def _fixed(x: Float[Array, "*any"]) -> Float32[Array, "*any"]:
    return jax.lax.stop_gradient(x.astype(jnp.float32))


def softmax_targets(
    logits: Float[Array, "*rows K"], centre: Centre, temperature: Scalar
) -> Float32[Array, "*rows K"]:
    """Return softmax((logits - centre) / temperature); DINO, equation 1 and section 3.1."""
    shift = _fixed(centre).reshape((1,) * (logits.ndim - 1) + (-1,))
    return jax.nn.softmax((_fixed(logits) - shift) / temperature, axis=-1)


def updated_centre(
    centre: Centre, logits: Float[Array, "N K"], momentum: Scalar, weights: Weights = None
) -> Centre:
    """Move the centre towards the mean of the rows: m c + (1 - m) mean; DINO, equation 4.

    Weights of 0 leave rows out. Without any row the centre stays.
    """
    before = _fixed(centre)
    after = momentum * before + (1 - momentum) * _mean(logits, weights).reshape(centre.shape)
    if weights is None:
        return after
    return jnp.where(weights.sum() > 0, after, before)


def sinkhorn(
    logits: Float[Array, "N K"],
    temperature: Scalar,
    iterations: int = 3,
    weights: Weights = None,
) -> Float32[Array, "N K"]:
    """Return targets that use all K prototypes about equally, by the algorithm of Sinkhorn-Knopp.

    From Q = exp(logits / temperature), divided by its sum, each iteration divides each prototype by
    its sum over the rows and by K, then each row by its sum over the prototypes and by N. The
    result is N Q, so that each row sums to 1 (SwAV, appendix A; DINOv2, arXiv:2304.07193,
    section 4). The potentials of rows and prototypes are kept instead of Q, as logarithms, so that
    no logit is too large; the divisions by K, N and the first sum cancel.

    Args:
        logits: one row for each example or patch.
        temperature: the teacher's.
        iterations: at least 1.
        weights: 1, or 0 for a row that only fills a buffer: it takes no part and its target is 0.
    """
    taken = jnp.ones(logits.shape[:1], bool) if weights is None else weights > 0
    # What fills a buffer may be anything, also NaN.
    scores = jnp.where(taken[:, None], _fixed(logits) / temperature, 0.0)
    row = jnp.zeros(len(scores))
    prototype = jnp.zeros(scores.shape[1])
    for _ in range(iterations):
        row = jnp.where(taken, row, -jnp.inf)
        prototype = -logsumexp(scores + row[:, None], axis=0)
        row = -logsumexp(scores + prototype[None], axis=1)
    return jnp.where(taken[:, None], jnp.exp(scores + prototype[None] + row[:, None]), 0.0)


def target_entropy(targets: Float[Array, "N K"], weights: Weights = None) -> Float32[Array, ""]:
    """Return the mean entropy of single targets, in nats: log K where the teacher is uniform."""
    return _mean(entr(_fixed(targets)).sum(axis=-1, keepdims=True), weights)[0]


def marginal_entropy(targets: Float[Array, "N K"], weights: Weights = None) -> Float32[Array, ""]:
    """Return the entropy of the mean target, in nats: 0 where one prototype takes all."""
    return entr(_mean(targets, weights)).sum()


def _mean(rows: Float[Array, "N K"], weights: Weights) -> Float32[Array, " K"]:
    """Return the weighted mean of the rows; 0 if all weights are."""
    rows = _fixed(rows)
    if weights is None:
        return rows.mean(axis=0)
    share = weights.astype(jnp.float32)
    share /= jnp.where(share.sum() > 0, share.sum(), 1.0)
    return jnp.where(share[:, None] > 0, share[:, None] * rows, 0.0).sum(axis=0)


@dataclasses.dataclass(frozen=True)
class Dino(Objective):
    """The objective; `cfg` is a `DinoConfig`."""

    cfg: DinoConfig

    @property
    def own_parameters(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The heads, and with hidden patches the mask token."""
        patches = (_TOKEN,) if self.cfg.shared_head else (_PATCH_HEAD, _TOKEN)
        return (_HEAD, *(patches if self.cfg.patch_weight else ()))

    @property
    def _of_patches(self) -> tuple[str, HeadConfig]:
        """The name and the config of the head of the patches."""
        cfg = self.cfg
        return (_HEAD, cfg.head) if cfg.shared_head else (_PATCH_HEAD, cfg.patch_head)

    @property
    def views(self) -> Mapping[str, View]:
        """Two large crops, the small ones together, and the large ones for Gram anchoring."""
        cfg, (height, width, channels) = self.cfg, models.input_shape(self.model)
        transforms = (self.data.transform, cfg.second)
        found = {
            name: View(
                transform=transform,
                size=(height, width),
                channels=channels,
                reading=reading(self.data),
            )
            for name, transform in zip(_GLOBAL, transforms, strict=True)
        }
        if cfg.small_crops:
            size = base.pair(cfg.small_size, "small_size")
            found[_LOCAL] = View(
                transform=cfg.small,
                size=size,
                channels=channels,
                reading=reading(self.data),
                count=cfg.small_crops,
            )
        if cfg.gram.weight:
            size = base.pair(cfg.gram.size, "gram.size") if cfg.gram.size else (height, width)
            for name, crop in zip(_GRAM, _GLOBAL, strict=True):
                plain = dataclasses.replace(
                    found[crop].transform, auto_augment="", color_jitter=0.0
                )
                found[name] = dataclasses.replace(
                    found[crop], transform=plain, size=size, like=crop
                )
        return found

    def _head(self, cfg: HeadConfig) -> ProjectionHead:
        sizes = (cfg.hidden_dim, cfg.bottleneck_dim, cfg.layers, cfg.prototypes)
        return ProjectionHead(*sizes, cfg.unit_prototypes, base.compute_dtype(self.model))

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """Initialise the encoder, the heads and, where patches are hidden, the mask token."""
        params, model_state = Objective.init(self, key)
        vit: Any = self.model
        features = jnp.zeros((1, vit.dim))
        keys = jax.random.split(jax.random.fold_in(key, 1), 2)
        own = {_HEAD: self._head(self.cfg.head).init(keys[0], features)["params"]}
        if self.cfg.patch_weight:
            if not self.cfg.shared_head:
                own[_PATCH_HEAD] = self._head(self.cfg.patch_head).init(keys[1], features)["params"]
            own[_TOKEN] = jnp.zeros((1, 1, vit.dim))
        return {**params, **own}, model_state

    def init_state(self, key: jax.Array) -> Any:
        """Return zeros for the centres of the teacher's logits, and for the teacher's copy.

        There is neither with Sinkhorn-Knopp and without Gram anchoring.
        """
        own: dict[str, Any] = {}
        if self.cfg.balance is Balance.CENTRE:
            own[_HEAD] = jnp.zeros(self.cfg.head.prototypes)
            if self.cfg.patch_weight:
                # Patches have a centre of their own, also where the head is shared.
                own[_PATCH_HEAD] = jnp.zeros(self._of_patches[1].prototypes)
        if self.cfg.gram.weight:
            params, _ = jax.eval_shape(functools.partial(Objective.init, self), key)
            own["gram"] = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)
        return own or None

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Normalise the crops and draw which patches of the large ones are hidden."""
        mean, std = self.data.mean, self.data.std
        large = jnp.stack([batch[name] for name in _GLOBAL], axis=1)
        found = {"large": data.normalize(_joined(large), mean, std)}
        if _LOCAL in batch:
            small = batch[_LOCAL]  # one crop has no axis of its own
            small = small if self.cfg.small_crops == 1 else _joined(small)
            found[_LOCAL] = data.normalize(small, mean, std)
        if self.cfg.patch_weight:
            found |= self._hidden(rng, len(found["large"]))
        if self.cfg.gram.weight:
            same = jnp.stack([batch[name] for name in _GRAM], axis=1)
            found["gram"] = data.normalize(_joined(same), mean, std)
        return found

    def _hidden(self, rng: jax.Array, num_images: int) -> Batch:
        """Return `source` [2B, N], the places [2B, M] of hidden patches and their weights."""
        cfg, total = self.cfg, hiding.num_patches(self.model)
        grid = models.patch_grid(self.model, models.input_shape(self.model)[:2])
        first, second = jax.random.split(rng)
        low, high = cfg.hidden_share
        counts = mask_counts(first, num_images, total, cfg.hidden_images, (low, high))
        hidden = block_masks(second, num_images, grid, counts)
        places, weights = gathered(hidden, max(int(total * high), 1))
        source = jnp.where(hidden, total, jnp.arange(total)[None])
        return {"source": source, "places": places, "weights": weights}

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the sum of the terms; each is a metric, with the entropies of the targets.

        `target_entropy` is of single targets, `marginal_entropy` of their mean, in nats; both are
        log K where the teacher says nothing, the second falls to 0 where it says one thing of all
        images. `feature_rank` is the participation ratio of the teacher's features.
        """
        cfg = self.cfg
        taught = jax.lax.stop_gradient(self._teacher(ctx.ema, batch))
        student, model_state = self._student(params, ctx.model_state, batch, rng, train=True)
        temperature = self._temperature(ctx.step)
        own = dict(ctx.objective or {})
        centres = {name: own[name] for name in (_HEAD, _PATCH_HEAD) if name in own}
        targets, centres = self._targets(taught["scores"], _HEAD, centres, temperature, None)
        dino = self._crop_loss(student, _by_crop(targets, 2))
        loss, metrics = dino, {"dino_loss": dino}
        if cfg.patch_weight:
            weights = batch["weights"].reshape(-1)
            real = (weights > 0).astype(jnp.float32)
            found, centres = self._targets(
                taught["patches"], _PATCH_HEAD, centres, temperature, real
            )
            num_images, heat = len(batch["large"]), cfg.student_temperature
            patch = ibot_loss(student["patches"], found, weights, heat, num_images)
            loss, metrics["ibot_loss"] = loss + cfg.patch_weight * patch, patch
        if cfg.spread_weight:
            crops = _by_crop(student["features"], 2)
            spread = koleo(crops[0]) + koleo(crops[1])
            loss, metrics["koleo_loss"] = loss + cfg.spread_weight * spread, spread
        if cfg.gram.weight:
            weight, anchored, own["gram"] = self._anchored(student["tokens"], ctx, batch)
            metrics |= {"gram_loss": anchored, "gram_weight": weight}
            loss = loss + weight * anchored
        metrics |= {
            "loss": loss,
            "target_entropy": target_entropy(targets),
            "marginal_entropy": marginal_entropy(targets),
            "feature_rank": feature_rank(taught["features"]),
            "teacher_temperature": temperature,
        }
        return loss, Aux(metrics, model_state, {**own, **centres} or None)

    def _anchored(
        self, tokens: Float[Array, "I L D"], ctx: Context, batch: Batch
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Return the weight of Gram anchoring, its loss (0 before it begins), and the copy."""
        cfg, prefix = self.cfg.gram, models.num_prefix(self.model)
        kept = ctx.objective["gram"]
        average = {name: ctx.ema["params"][name] for name in kept}
        kept = jax.lax.stop_gradient(gram.copied(cfg, self.clock, ctx.step, kept, average))
        weight = gram.weight(cfg, self.clock, ctx.step)
        started = gram.started(cfg, self.clock, ctx.step)

        def loss(patches: jax.Array) -> jax.Array:
            return gram.gram_loss(patches, self._kept_patches({"params": kept}, batch))

        patches = tokens[:, prefix:].astype(jnp.float32)
        found = jax.lax.cond(started, loss, lambda patches: 0 * patches.sum(), patches)
        return weight, found, kept

    def _kept_patches(self, variables: Any, batch: Batch) -> Float[Array, "I N D"]:
        """Return the patches of the large crops as the copy sees them, on the student's grid."""
        grids = []
        for name in ("gram", "large"):
            height, width = batch[name].shape[1:3]
            grids.append(models.patch_grid(self.model, (height, width)))
        out = self.module.apply(variables, batch["gram"], train=False)
        return gram.regridded(out.tokens[:, models.num_prefix(self.model) :], *grids)

    def _crop_loss(self, student: Batch, targets: Float[Array, "2 B K"]) -> jax.Array:
        """Return the mean over the pairs of a student's crop and another crop of the teacher's."""
        heat, small = self.cfg.student_temperature, self.cfg.small_crops
        large = dino_loss(_by_crop(student["scores"], 2), targets, heat, skip_same=True)
        if not small:
            return large
        scores = _by_crop(student["small_scores"], small)
        other = dino_loss(scores, targets, heat, skip_same=False)
        return (2 * large + 2 * small * other) / (2 + 2 * small)

    def _targets(
        self,
        scores: Float[Array, "M K"],
        head: str,
        centres: dict[str, jax.Array],
        temperature: jax.Array,
        weights: jax.Array | None,
    ) -> tuple[Float[Array, "M K"], dict[str, jax.Array]]:
        """Return the targets of a head and the centres with the new one of that head."""
        if self.cfg.balance is Balance.SINKHORN:
            return sinkhorn(scores, temperature, weights=weights), centres
        centre = centres[head]
        new = updated_centre(centre, scores, _CENTRE_MOMENTUM, weights)
        return softmax_targets(scores, centre, temperature), {**centres, head: new}

    def _temperature(self, step: jax.Array) -> jax.Array:
        # Differs from paper: DINO's code raises it once an epoch; as here, by steps, v2's and v3's.
        cfg = self.cfg
        steps = self.clock.steps(cfg.temperature_warmup) if self.clock else 0
        done = jnp.minimum(jnp.asarray(step, jnp.float32) / max(steps, 1), 1.0) if steps else 1.0
        first, last = cfg.first_temperature, cfg.teacher_temperature
        return jnp.asarray(first + (last - first) * done, jnp.float32)

    def _teacher(self, average: Any, batch: Batch) -> Batch:
        """Return the teacher's `features` and `scores` of large crops, and of hidden patches."""
        out = self.module.apply(average, batch["large"], train=False)
        params = average["params"]
        found = {"features": out.features, "scores": self._scores(params, out.features)}
        if self.cfg.patch_weight:
            found["patches"] = self._patch_scores(params, out.tokens, batch["places"])
        return found

    def _student(
        self, params: Any, state: Any, batch: Batch, rng: jax.Array, *, train: bool
    ) -> tuple[Batch, Any]:
        """Return what `_teacher` does of the student, and its scores of the small crops."""
        hidden = {"source": batch["source"]} if self.cfg.patch_weight else {}
        out, state = self.apply(params, state, batch["large"], rng, train=train, **hidden)
        found = {"features": out.features, "scores": self._scores(params, out.features)}
        if self.cfg.gram.weight:
            found["tokens"] = out.tokens
        if self.cfg.patch_weight:
            found["patches"] = self._patch_scores(params, out.tokens, batch["places"])
        if _LOCAL in batch:
            key = jax.random.fold_in(rng, 1)
            out, state = self.apply(params, state, batch[_LOCAL], key, train=train)
            found["small_scores"] = self._scores(params, out.features)
        return found, state

    def _scores(self, params: Any, features: jax.Array) -> Float[Array, "M K"]:
        found = self._head(self.cfg.head).apply({"params": params[_HEAD]}, features)
        return cast(jax.Array, found)

    def _patch_scores(
        self, params: Any, tokens: jax.Array, places: Int[Array, "I M"]
    ) -> Float[Array, "IM K"]:
        at = places[:, :, None] + models.num_prefix(self.model)
        found = jnp.take_along_axis(tokens, at, axis=1).reshape(-1, tokens.shape[-1])
        name, cfg = self._of_patches
        scores = self._head(cfg).apply({"params": params[name]}, found)
        return cast(jax.Array, scores)

    def alarm(self, metrics: Mapping[str, float]) -> str:
        """Return how the targets or the features have collapsed, in words; "" if they have not."""
        most = math.log(self.cfg.head.prototypes)
        if metrics.get("marginal_entropy", most) < _COLLAPSED * most:
            return "collapse: the teacher has the same target for nearly all images"
        if metrics.get("feature_rank", 2.0) < 1 + _COLLAPSED:
            return "collapse: the features of all images lie on one line"
        return ""

    def flops(self, variables: Any) -> int:
        """Return the model FLOPs of training on one example.

        Three times the student's on all crops, and the teacher's on the large ones; as if Gram
        anchoring were on throughout.
        """
        looped = dataclasses.replace(self, model=models.looped(self.model))
        rng = jax.eval_shape(lambda: jax.random.key(0))
        shapes = {
            name: jax.ShapeDtypeStruct((1, *view.shape), jnp.uint8)
            for name, view in self.views.items()
        }
        batch = jax.eval_shape(looped.prepare, shapes, rng)
        params = variables["params"]
        state = {name: value for name, value in variables.items() if name != "params"}
        student = functools.partial(looped._student, train=False)
        teacher = count(looped._teacher, variables, batch)
        if self.cfg.gram.weight:
            teacher += count(looped._kept_patches, variables, batch)
        return train_flops(count(student, params, state, batch, rng)) + teacher


def _joined(crops: Array) -> Array:
    """Turn [B, n, ...] into [B * n, ...], the crops of an image side by side.

    No image moves to another device: the batch stays split as it was.
    """
    return crops.reshape(-1, *crops.shape[2:])


def _by_crop(rows: Float[Array, "Bn K"], count: int) -> Float[Array, "n B K"]:
    """Undo `_joined`, with the crops as the first axis."""
    return rows.reshape(-1, count, rows.shape[-1]).swapaxes(0, 1)
