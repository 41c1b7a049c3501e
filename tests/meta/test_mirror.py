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
    "__main__.py": "tests/unit/cli/test_as_module.py",
    "cli/cache_teacher.py": "tests/integration/train/test_logit_cache.py",
    "cli/check_*.py": "tests/integration/cli/test_doctor.py",
    "cli/convert.py": "tests/integration/weights/test_convert.py",
    "cli/export.py": "tests/integration/inference/test_export.py",
    "cli/flags.py": "tests/integration/cli/test_errors.py",
    "cli/model_options.py": "tests/integration/inference/test_trained.py",
    "cli/models.py": "tests/unit/cli/test_as_module.py",
    "cli/predict.py": "tests/integration/inference/test_prediction.py",
    "cli/prepare.py": "tests/unit/cli/test_as_module.py",
    "cli/probe_masks.py": "tests/integration/inference/test_dense_probing.py",
    "cli/summary.py": "tests/integration/cli/test_configs.py",
    "cli/sweep.py": "tests/integration/sweeps/test_worker.py",
    "cli/sweep_plan.py": "tests/integration/sweeps/test_price.py",
    "cli/sweep_re*.py": "tests/integration/sweeps/test_results.py",
    "cli/sweep_run.py": "tests/integration/sweeps/test_worker.py",
    "cli/sweep_status.py": "tests/integration/sweeps/test_results.py",
    "cli/train.py": "tests/integration/cli/test_errors.py",
    # They need a compiler of a TPU or a GPU.
    "aot/compiler.py": "tests/aot/test_programs.py",
    "aot/topology.py": "tests/aot/test_cost.py",
    # Parts of one thing, which is tested as a whole.
    "analysis/scaling/fitting.py": "tests/integration/analysis/scaling/test_power_law.py",
    "analysis/workspace.py": "tests/integration/analysis/test_memory.py",
    "checkpoints/own_disk.py": "tests/faults/test_bucket_runs.py",
    "config.py": "tests/integration/test_config_types.py",
    "evals/probes.py": "tests/integration/evals/test_features.py",
    "inference/evaluate.py": "tests/integration/cli/test_evaluate.py",
    "inference/export_check.py": "tests/integration/inference/test_export.py",
    "inference/pruning.py": "tests/integration/cli/test_prune.py",
    "inference/input_line.py": "tests/unit/weights/test_describe.py",
    "inference/model_card.py": "tests/integration/inference/test_export.py",
    "inference/probing.py": "tests/integration/cli/test_probe.py",
    "inference/transformers_folder.py": "tests/integration/weights/test_repository.py",
    "inference/views.py": "tests/integration/inference/test_prediction.py",
    "models/decoder.py": "tests/parity/test_mae.py",
    "out_of_memory.py": "tests/integration/train/test_loop.py",
    "objectives/base.py": "tests/meta/test_add_an_objective.py",
    "objectives/dino_config.py": "tests/unit/objectives/test_dino.py",
    "objectives/hiding.py": "tests/unit/objectives/test_mae.py",
    "data/copies.py": "tests/unit/data/test_folders.py",
    "data/csv_before.py": "tests/unit/data/test_csv_files.py",
    "data/folder_layout.py": "tests/unit/data/test_folders.py",
    "data/folders_before.py": "tests/unit/data/test_folders.py",
    "data/listing.py": "tests/unit/data/test_folders.py",
    "data/look_cache.py": "tests/unit/data/test_look.py",
    "evals/frozen.py": "tests/meta/test_add_an_objective.py",
    "distill/cache.py": "tests/integration/train/test_logit_cache.py",
    "distill/stream.py": "tests/integration/train/test_logit_cache.py",
    "distill/teacher.py": "tests/integration/train/test_distill.py",
    "distill/write.py": "tests/integration/train/test_logit_cache.py",
    "recipes/*.py": "tests/unit/test_recipes.py",
    "visual/augmentation_sheets.py": "tests/integration/cli/test_visualize.py",
    "visual/sweep_*.py": "tests/integration/sweeps/test_results.py",
    "visual/weight_sheets.py": "tests/integration/visual/test_attention_sheets.py",
    "weights/adapters.py": "tests/integration/train/test_adapted.py",
    "weights/apply.py": "tests/integration/weights/test_timm.py",
    "weights/export.py": "tests/integration/weights/test_convert.py",
    "weights/hf_views.py": "tests/unit/weights/test_hf.py",
    "weights/load.py": "tests/integration/weights/test_init.py",
    # Layers are compared with other codes as parts of models.
    "models/base.py": "tests/integration/models/test_vit.py",
    "models/facts.py": "tests/unit/weights/test_published.py",
    "models/layers/block.py": "tests/integration/models/test_vit.py",
    "models/layers/flash.py": "tests/integration/models/layers/test_cudnn.py",
    "models/layers/patch.py": "tests/integration/models/test_vit.py",
    "models/layers/pool.py": "tests/integration/models/test_vit.py",
    "models/layers/resnet.py": "tests/integration/models/test_resnet.py",
    "models/layers/stack.py": "tests/integration/models/test_vit.py",
    "models/vit_family.py": "tests/integration/models/test_vit.py",
    "models/vit_config.py": "tests/unit/models/test_vit.py",
    # A run is tested whole, or by its faults.
    "train/begin.py": "tests/integration/train/test_resume.py",
    "train/health/lost_process.py": "tests/faults/test_lost_host.py",
    "train/health/peers.py": "tests/faults/test_peers.py",
    "train/health/preemption.py": "tests/faults/test_signals.py",
    "train/health/spikes.py": "tests/faults/test_spikes.py",
    "train/health/watchdog.py": "tests/faults/test_hang.py",
    "train/metadata.py": "tests/integration/train/test_resume.py",
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
