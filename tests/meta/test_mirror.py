# SPDX-License-Identifier: Apache-2.0
"""Every module has the test file that its path names, or the table says which one covers it."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# vit_jax/data/ops.py is tested in tests/unit/data/test_ops.py, what is slow of it in
# tests/integration/data/test_ops.py; tests/aot is the folder of vit_jax/aot.
HOMES = ("tests/unit", "tests/integration", "tests")

ELSEWHERE = {
    # Verbs: what they call is tested beside it, what they print where it is called.
    "__main__.py": "tests/cli/test_as_module.py",
    "cli/cache_teacher.py": "tests/train/test_logit_cache.py",
    "cli/check_*.py": "tests/cli/test_doctor.py",
    "cli/compile_report.py": "tests/cli/test_compile_for.py",
    "cli/convert.py": "tests/weights/test_convert.py",
    "cli/export.py": "tests/inference/test_export.py",
    "cli/flags.py": "tests/cli/test_errors.py",
    "cli/model_options.py": "tests/inference/test_trained.py",
    "cli/models.py": "tests/cli/test_as_module.py",
    "cli/predict.py": "tests/inference/test_predict.py",
    "cli/prepare.py": "tests/cli/test_as_module.py",
    "cli/show_config.py": "tests/cli/test_configs.py",
    "cli/summary.py": "tests/cli/test_configs.py",
    "cli/sweep.py": "tests/sweeps/test_run.py",
    "cli/sweep_file.py": "tests/sweeps/test_point.py",
    "cli/sweep_plan.py": "tests/sweeps/test_price.py",
    "cli/sweep_re*.py": "tests/sweeps/test_report.py",
    "cli/sweep_run.py": "tests/sweeps/test_run.py",
    "cli/sweep_status.py": "tests/sweeps/test_report.py",
    "cli/train.py": "tests/cli/test_errors.py",
    # They need a compiler of a TPU or a GPU.
    "aot/compiler.py": "tests/aot/test_programs.py",
    "aot/topology.py": "tests/aot/test_cost.py",
    # Parts of one thing, which is tested as a whole.
    "analysis/scaling/fitting.py": "tests/analysis/scaling/test_power_law.py",
    "analysis/workspace.py": "tests/analysis/test_memory.py",
    "checkpoints/reader.py": "tests/checkpoints/test_reading.py",
    "checkpoints/record.py": "tests/checkpoints/test_digest.py",
    "checkpoints/storage.py": "tests/checkpoints/test_reading.py",
    "config.py": "tests/test_config_types.py",
    "data/augment/autoaugment.py": "tests/data/test_augment_autoaugment.py",
    "data/augment/pillow.py": "tests/data/test_augment_pillow.py",
    "data/augment/randaug.py": "tests/data/test_augment_randaug.py",
    "data/augment/timm_randaug.py": "tests/data/test_augment_timm.py",
    "data/batches.py": "tests/data/test_pipeline.py",
    "data/catalog.py": "tests/data/test_pipeline.py",
    "data/sources.py": "tests/data/test_classes.py",
    "evals/feature_files.py": "tests/evals/test_features.py",
    "evals/intervals.py": "tests/evals/test_calibration.py",
    "evals/meter.py": "tests/evals/test_classify.py",
    "evals/passes.py": "tests/evals/test_classify.py",
    "evals/probes.py": "tests/evals/test_features.py",
    "inference/evaluate.py": "tests/cli/test_evaluate.py",
    "inference/export_check.py": "tests/inference/test_export.py",
    "inference/features.py": "tests/cli/test_probe.py",
    "inference/measure.py": "tests/cli/test_evaluate.py",
    "inference/model_card.py": "tests/inference/test_export.py",
    "inference/page.py": "tests/cli/test_serve.py",
    "inference/page_guard.py": "tests/serve/test_guard.py",
    "inference/page_requests.py": "tests/serve/test_requests.py",
    "inference/prediction.py": "tests/inference/test_predict.py",
    "inference/probing.py": "tests/cli/test_probe.py",
    "inference/timm_config.py": "tests/inference/test_published.py",
    "objectives/config.py": "tests/objectives/test_supervised.py",
    "recipes/*.py": "tests/test_recipes.py",
    "sweeps/results.py": "tests/sweeps/test_report.py",
    "sweeps/worker.py": "tests/sweeps/test_run.py",
    "visual/augmentation_sheets.py": "tests/cli/test_visualize.py",
    "visual/head_maps.py": "tests/visual/test_attention.py",
    "visual/sweep_*.py": "tests/sweeps/test_report.py",
    "visual/weight_sheets.py": "tests/visual/test_attention_sheets.py",
    "weights/apply.py": "tests/weights/test_official.py",
    "weights/export.py": "tests/weights/test_convert.py",
    "weights/load.py": "tests/weights/test_init.py",
    "weights/timm.py": "tests/weights/test_convert.py",
    # Layers are compared with other codes as parts of models.
    "models/base.py": "tests/models/test_vit.py",
    "models/facts.py": "tests/inference/test_published.py",
    "models/layers/attention.py": "tests/models/test_layers.py",
    "models/layers/block.py": "tests/models/test_vit.py",
    "models/layers/conv.py": "tests/models/test_conv.py",
    "models/layers/cudnn.py": "tests/models/test_cudnn.py",
    "models/layers/dense.py": "tests/models/test_dense.py",
    "models/layers/drop.py": "tests/models/test_dropout.py",
    "models/layers/mlp.py": "tests/models/test_layers.py",
    "models/layers/norm.py": "tests/models/test_group_norm.py",
    "models/layers/pallas.py": "tests/models/test_pallas.py",
    "models/layers/patch.py": "tests/models/test_vit.py",
    "models/layers/pool.py": "tests/models/test_vit.py",
    "models/layers/resnet.py": "tests/models/test_resnet.py",
    "models/layers/stack.py": "tests/models/test_vit.py",
    "models/layers/token_merging.py": "tests/models/test_token_merging.py",
    "models/layers/weighted.py": "tests/models/test_weighted.py",
    "models/layers/window_max.py": "tests/models/test_window_max.py",
    "models/layers/xla.py": "tests/models/test_xla.py",
    "models/mup.py": "tests/test_mup.py",
    "models/vit_family.py": "tests/models/test_vit.py",
    # A run is tested whole, or by its faults.
    "train/build.py": "tests/train/test_step.py",
    "train/hang.py": "tests/faults/test_hang.py",
    "train/identity.py": "tests/faults/test_changed_data.py",
    "train/loop.py": "tests/train/test_resume.py",
    "train/lost_process.py": "tests/faults/test_lost_host.py",
    "train/metadata.py": "tests/train/test_resume.py",
    "train/peers.py": "tests/faults/test_peers.py",
    "train/spikes.py": "tests/faults/test_spikes.py",
    "train/stages.py": "tests/train/test_resume.py",
    "train/start.py": "tests/weights/test_init.py",
    "train/state.py": "tests/train/test_step.py",
    "train/stop.py": "tests/faults/test_signals.py",
    "train/teacher.py": "tests/train/test_distill.py",
    "train/write_cache.py": "tests/train/test_logit_cache.py",
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


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_its_test_file(module: str) -> None:
    covered = [test for pattern, test in ELSEWHERE.items() if fnmatch(module, pattern)]
    folder, _, name = module.rpartition("/")
    assert mirror(module) or covered, (
        f"write {Path('tests/unit', folder, f'test_{name}')}, or name what covers it in ELSEWHERE"
    )


@pytest.mark.parametrize("pattern, test", ELSEWHERE.items())
def test_the_table_holds_what_it_has_to(pattern: str, test: str) -> None:
    modules = [module for module in MODULES if fnmatch(module, pattern)]
    assert modules, "there is no such module"
    assert [m for m in modules if not mirror(m)], "it has its own test file; drop the row"
    assert (ROOT / test).is_file(), f"there is no {test}"
