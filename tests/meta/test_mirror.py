# SPDX-License-Identifier: Apache-2.0
"""Every module has the test file that its path names, or the table says which one covers it."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# vit_jax/data/images/ops.py is tested in tests/unit/data/images/test_ops.py, what is slow of it in
# tests/integration/data/images/test_ops.py.
HOMES = ("tests/unit", "tests/integration", "tests")

ELSEWHERE = {
    # Verbs: what they call is tested beside it, what they print where it is called.
    "__main__.py": "tests/unit/cli/test_as_module.py",
    "cli/cache_teacher.py": "tests/integration/train/test_logit_cache.py",
    "cli/check_data.py": "tests/unit/data/test_inspection.py",
    "cli/weights/convert.py": "tests/integration/weights/test_convert.py",
    "cli/checks/machine.py": "tests/unit/cli/test_doctor.py",
    "cli/weights/export.py": "tests/integration/export/test_model.py",
    "cli/parsing/model_options.py": "tests/integration/inference/test_trained.py",
    "cli/weights/soup.py": "tests/integration/sweeps/test_soup.py",
    "cli/models.py": "tests/unit/cli/test_as_module.py",
    "cli/predict.py": "tests/integration/inference/test_prediction.py",
    "cli/prepare.py": "tests/unit/cli/test_as_module.py",
    "cli/summary.py": "tests/integration/cli/test_configs.py",
    "cli/texts/retrieval.py": "tests/integration/cli/texts/test_zero_shot.py",
    "cli/sweep.py": "tests/integration/sweeps/test_worker.py",
    "cli/sweeps/plan.py": "tests/integration/sweeps/test_price.py",
    "cli/sweeps/report.py": "tests/integration/sweeps/test_results.py",
    "cli/sweeps/run.py": "tests/integration/sweeps/test_worker.py",
    "cli/sweeps/status.py": "tests/integration/sweeps/test_results.py",
    "cli/train.py": "tests/integration/cli/test_errors.py",
    # They need a compiler of a TPU or a GPU.
    "cost/hlo.py": "tests/aot/test_hlo.py",
    "cost/topology.py": "tests/aot/test_cost.py",
    # Parts of one thing, which is tested as a whole.
    "sweeps/scaling/fitting.py": "tests/integration/sweeps/scaling/test_power_law.py",
    "config/tree.py": "tests/integration/test_config_types.py",
    "devices/hosts.py": "tests/faults/test_peers.py",
    "train/estimate.py": "tests/integration/cli/test_dry_run.py",
    "version.py": "tests/meta/test_moved.py",
    "evals/probes/base.py": "tests/integration/evals/probes/test_features.py",
    "inference/evaluate.py": "tests/integration/cli/test_evaluate.py",
    "inference/image_text.py": "tests/integration/cli/texts/test_search.py",
    "inference/pairs.py": "tests/integration/export/test_pairs.py",
    "inference/pruning.py": "tests/integration/cli/weights/test_prune.py",
    "export/card.py": "tests/integration/export/test_model.py",
    "inference/probing.py": "tests/integration/cli/test_probe.py",
    "inference/views.py": "tests/integration/inference/test_prediction.py",
    "models/text.py": "tests/integration/models/test_two_towers.py",
    "models/decoder.py": "tests/parity/test_mae.py",
    "evals/dense/average_precision.py": "tests/unit/evals/dense/test_metrics.py",
    "evals/dense/miou.py": "tests/unit/evals/dense/test_metrics.py",
    "evals/dense/panoptic.py": "tests/unit/evals/dense/test_metrics.py",
    "evals/dense/walk.py": "tests/unit/evals/dense/test_evaluators.py",
    "inference/pixel_scores.py": "tests/integration/inference/test_pixels.py",
    "inference/dense.py": "tests/integration/weights/names/test_eomt.py",
    "export/dense.py": "tests/integration/weights/names/test_eomt.py",
    "export/onnx_functions.py": "tests/integration/export/test_onnx.py",
    "export/onnx_nodes.py": "tests/integration/export/test_onnx.py",
    "export/onnx_quantize.py": "tests/integration/export/test_onnx.py",
    "objectives/base.py": "tests/meta/test_add_an_objective.py",
    "objectives/dino_config.py": "tests/unit/objectives/test_dino.py",
    "objectives/hiding.py": "tests/unit/objectives/test_mae.py",
    "data/old_tables.py": "tests/unit/data/sources/test_csv_files.py",
    "data/sources/sharded/row_groups.py": "tests/unit/data/sources/sharded/test_parquet_files.py",
    "evals/several.py": "tests/integration/train/test_several.py",
    "inference/labels.py": "tests/integration/train/test_several.py",
    "data/sources/listing.py": "tests/unit/data/sources/test_folders.py",
    "data/sources/dense/annotated.py": "tests/unit/data/sources/dense/test_coco.py",
    "data/sources/dense/facts.py": "tests/unit/data/sources/dense/test_masks.py",
    "data/sources/dense/ids.py": "tests/unit/data/sources/dense/test_masks.py",
    "data/sources/dense/pairs.py": "tests/unit/data/sources/dense/test_masks.py",
    "data/sources/dense/segments.py": "tests/unit/data/sources/dense/test_coco.py",
    "data/targets.py": "tests/unit/data/sources/dense/test_coco.py",
    "evals/probes/frozen.py": "tests/meta/test_add_an_objective.py",
    "distill/cache.py": "tests/integration/train/test_logit_cache.py",
    "distill/stream.py": "tests/integration/train/test_logit_cache.py",
    "distill/teacher.py": "tests/integration/train/test_distill.py",
    "train/write_logits.py": "tests/integration/train/test_logit_cache.py",
    "recipes/*.py": "tests/unit/test_recipes.py",
    "visual/augmentation_sheets.py": "tests/integration/cli/test_visualize.py",
    "sweeps/report.py": "tests/integration/sweeps/test_results.py",
    "visual/weight_sheets.py": "tests/integration/visual/test_attention_sheets.py",
    "weights/adapters.py": "tests/integration/train/test_adapted.py",
    "weights/apply.py": "tests/integration/weights/names/test_timm.py",
    "weights/export.py": "tests/integration/weights/test_convert.py",
    "weights/loading.py": "tests/integration/weights/test_init.py",
    # Layers are compared with other codes as parts of models.
    "models/base.py": "tests/integration/models/families/test_vit.py",
    "models/facts.py": "tests/unit/weights/published/test_table.py",
    "models/layers/block.py": "tests/integration/models/families/test_vit.py",
    "models/layers/patch.py": "tests/integration/models/families/test_vit.py",
    "models/layers/pool.py": "tests/integration/models/families/test_vit.py",
    "models/conv/resnet.py": "tests/integration/models/families/test_resnet.py",
    "models/families/vit_family.py": "tests/integration/models/families/test_vit.py",
    "models/families/vit_config.py": "tests/unit/models/families/test_vit.py",
    # A run is tested whole, or by its faults.
    "train/health/lost_process.py": "tests/faults/test_lost_host.py",
    "train/health/peers.py": "tests/faults/test_peers.py",
    "process/preemption.py": "tests/faults/test_signals.py",
    "train/health/spikes.py": "tests/faults/test_spikes.py",
    "train/health/watchdog.py": "tests/faults/test_hang.py",
    "train/run.py": "tests/integration/train/test_resume.py",
    "train/state.py": "tests/integration/train/test_step.py",
}

MODULES = sorted(
    str(path.relative_to(ROOT / "vit_jax"))
    for path in (ROOT / "vit_jax").rglob("*.py")
    if path.name != "__init__.py"
)


def mirror(module: str) -> Path | None:
    """Return the test file that a module's path names, where there is one."""
    folder, _, name = module.rpartition("/")
    paths = [ROOT / home / folder / f"test_{name}" for home in HOMES]
    return next((path for path in paths if path.is_file()), None)


def test_every_module_has_its_test_file(subtests: pytest.Subtests) -> None:
    for module in MODULES:
        with subtests.test(module):
            covered = [test for pattern, test in ELSEWHERE.items() if fnmatch(module, pattern)]
            folder, _, name = module.rpartition("/")
            path = Path("tests/unit", folder, f"test_{name}")
            assert mirror(module) or covered, f"write {path}, or name what covers it in ELSEWHERE"


def test_the_table_holds_what_it_has_to(subtests: pytest.Subtests) -> None:
    for pattern, test in ELSEWHERE.items():
        with subtests.test(pattern):
            modules = [module for module in MODULES if fnmatch(module, pattern)]
            assert modules, "there is no such module"
            assert [m for m in modules if not mirror(m)], "it has its own test file; drop the row"
            assert (ROOT / test).is_file(), f"there is no {test}"
