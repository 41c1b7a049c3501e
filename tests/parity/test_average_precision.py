# SPDX-License-Identifier: Apache-2.0
"""Average precision of masks against COCO's own code, with crowds, equal scores and lone images."""

from typing import Any

import numpy as np
import pytest

from vit_jax.evals.dense import average_precision


def test_average_precision_equals_pycocotools() -> None:
    coco = pytest.importorskip("pycocotools.coco")
    from pycocotools.cocoeval import COCOeval
    from pycocotools.mask import encode

    rng = np.random.default_rng(1)
    images, size, truth, found = range(1, 9), (120, 150), [], []

    def mask() -> np.ndarray:
        drawn = np.zeros(size, bool)
        top, left = rng.integers(0, 90), rng.integers(0, 110)
        height, width = rng.integers(4, 118, 2)
        drawn[top : top + height, left : left + width] = True
        drawn[rng.random(size) < 0.05] = False
        return drawn

    def shifted(drawn: np.ndarray) -> np.ndarray:
        return np.roll(drawn, rng.integers(-6, 7, 2), axis=(0, 1))

    of_class: list[list[Any]] = [[], []]
    for image in images:
        for k in range(2):
            true = [mask() for _ in range(rng.integers(0, 5))]
            crowd = rng.random(len(true)) < 0.2
            guess = [shifted(m) for m in true if rng.random() < 0.8] + [mask()]
            scores = rng.random(len(guess)).round(1)
            for drawn, many in zip(true, crowd, strict=True):
                item = {"id": len(truth) + 1, "image_id": image, "category_id": k}
                rle = encode(np.asfortranarray(drawn.astype(np.uint8)))
                more = {"iscrowd": int(many), "area": int(drawn.sum()), "segmentation": rle}
                truth.append({**item, **more})
            for drawn, score in zip(guess, scores.tolist(), strict=True):
                rle = encode(np.asfortranarray(drawn.astype(np.uint8)))
                item = {"image_id": image, "category_id": k, "score": score}
                found.append({**item, "segmentation": rle})
            stack = np.array(true, bool).reshape(-1, *size), np.array(guess, bool)
            overlaps = average_precision.mask_overlaps(stack[1], stack[0], crowd)
            areas = stack[1].sum(axis=(1, 2)), stack[0].sum(axis=(1, 2))
            of_class[k].append(average_precision.matches(overlaps, scores, *areas, crowd))
    api = coco.COCO()
    api.dataset = {
        "images": [{"id": i, "height": size[0], "width": size[1]} for i in images],
        "annotations": truth,
        "categories": [{"id": k} for k in range(2)],
    }
    api.createIndex()
    judge = COCOeval(api, api.loadRes(found), "segm")
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    result = average_precision.precision(of_class)
    own = np.nan_to_num(list(result.summary().values()), nan=-1)
    np.testing.assert_allclose(own, judge.stats, rtol=1e-9)
    np.testing.assert_allclose(result.precision, judge.eval["precision"], rtol=1e-9)
