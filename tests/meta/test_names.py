# SPDX-License-Identifier: Apache-2.0
"""Every place that opens, writes, deletes or runs something by a name says why the name is safe.

A new one fails here until it is looked at: a name from outside (an object of a bucket, a list in a
file, a member of an archive) becomes a path by `storage.foreign` alone, and never a program.
"""

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "vit_jax"

# Functions, and methods of paths and of modules, by their last name.
_CALLED = {"open", "exec", "eval", "__import__", "safe_open", "Popen"}
_METHODS = {
    *("open", "fdopen", "read_text", "read_bytes", "write_text", "write_bytes", "touch"),
    *("unlink", "rename", "renames", "mkdir", "makedirs", "rmtree", "rmdir", "removedirs"),
    *("symlink_to", "hardlink_to", "copy2", "copyfile", "copytree", "move", "extractall"),
    *("extract", "unpack_archive", "replace", "memmap", "ZipFile", "safe_open", "Popen"),
    *("import_module", "run_path", "run_module", "exec_module", "spec_from_file_location"),
    *("load", "loads", "unsafe_load", "full_load", "safe_load", "literal_eval"),
    *("get_file", "put_file", "pipe_file", "rm_file", "fetch", "builder_from_directory"),
    *("remove", "system", "truncate", "symlink", "link", "copy", "write_folder", "replacing"),
}
# These names count only where they are called on one of these modules.
_OF = {
    "load": {"np", "pickle", "torch", "yaml", "marshal", "joblib", "onnx", "ocp", "numpy"},
    "loads": {"pickle", "marshal"},
    "copy": {"shutil"},
    "move": {"shutil"},
    "extract": {"archive"},
    "truncate": {"os", "file", "stream"},
    **{name: {"os"} for name in ("remove", "system", "symlink", "link")},
}

# Why each is safe; then "file:function: calls", a call as often as it is made.
REVIEWED = {
    # By the one function: the test below looks for it in the function.
    "foreign": """
        checkpoints/copies.py:fetch: fetch mkdir rename rmtree rmtree rmtree
        checkpoints/copies.py:readable.fetch_missing: fetch fetch mkdir rename
        data/sources/records.py:_find_remote.copy: mkdir
        sweeps/in_bucket.py:pull: fetch
        sweeps/queue.py:claim: mkdir open truncate
        sweeps/queue.py:holder: open
        workdir/mirror.py:Mirror._begin: fetch fetch rmtree rmtree unlink
        storage/bucket.py:Folder.fetch.get: get_file mkdir
    """,
    # What the caller names, who made the name by `foreign.inside` or is one of the rows below.
    "a tool": """
        checkpoints/reader.py:find: fetch
        storage/array_files.py:vectors: ZipFile
        storage/bucket.py:Folder.create: pipe_file
        storage/bucket.py:Folder.remove.delete: rm_file
        storage/bucket.py:Folder.send.put: put_file
        storage/bucket.py:Folder.write: pipe_file
        storage/files.py:make_folder: mkdir touch unlink
        storage/files.py:replacing: replace unlink
        storage/files.py:sync: open
        storage/files.py:write: replacing write_bytes
        storage/files.py:write_folder: mkdir rename replace rmtree
        storage/foreign.py:read: open
        storage/remote.py:read: read_bytes
        storage/remote.py:read_range: open
        data/images/bands.py:_members: ZipFile
        data/images/bands.py:pack: ZipFile
        data/images/header.py:open_image: open
        data/images/header.py:read_file: open
        data/images/tiff.py:_by_libtiff: open
        evals/corruptions.py:_jpeg_compression: open
    """,
    # A constant name in a directory that the person names.
    "a constant": """
        cost/scale.py:rows: read_text
        evals/dense/evaluators.py:_Dense.report: mkdir mkdir
        inference/pixels.py:write.store: mkdir
        checkpoints/checkpointer.py:Checkpointer._open: mkdir
        checkpoints/copies.py:_alone: open
        checkpoints/storage.py:prepare: open
        data/sources/look.py:Known.__post_init__: read_bytes
        data/sources/look.py:Known.add: mkdir open
        checkpoints/storage.py:_arrays: open
        checkpoints/storage.py:try_to_write: rmdir
        cli/checks/machine.py:requirements: read_text
        cli/weights/convert.py:_write_folder: write_folder
        cli/weights/convert.py:_write_pair: write_folder
        process/output.py:_Outliving._drop: open
        cli/sweeps/report.py:report: write_text
        data/augment/autoaugment.py:sub_policies: read_text
        data/sources/copy_records.py:_write_shard: replacing
        data/sources/copy_records.py:write: mkdir open rename truncate unlink
        data/sources/digits.py:prepare: mkdir rename rmtree
        data/classes.py:_rows: read_text
        data/sources/sharded/tar_index.py:_remember: mkdir
        data/sources/sharded/tar_index.py:_write: mkdir
        demo/page.py:write: read_text
        export/onnx_quantize.py:quantized: read_bytes
        data/stream/shared.py:Slots.__setstate__: open
        distill/cache.py:LogitCache._crc32: open
        distill/cache.py:LogitCache.reserve: open
        distill/cache.py:LogitCache.rows: memmap
        distill/cache.py:LogitCache.write: open
        evals/probes/features.py:FeatureFiles._map: open
        evals/probes/features.py:FeatureFiles.cut: load replace
        evals/probes/features.py:FeatureFiles.write_lines: open
        evals/probes/features.py:FeatureFiles.write_readme: load write_text
        evals/drift.py:Drift._keep: mkdir
        evals/several.py:MultiLabel.run: mkdir
        evals/report.py:write_report: mkdir write_bytes write_text write_text
        devices/hardware.py:_cpu_info: read_text
        export/folder.py:_is_export: read_text
        export/folder.py:write: mkdir rename replace rmtree unlink unlink
        export/card.py:_text: read_text
        models/facts.py:_rows: read_text
        models/facts.py:parsed: literal_eval
        models/two_towers.py:_rows: read_text
        evals/zero_shot.py:names: read_text
        __main__.py:written_help: open
        process/startup.py:keep_programs: mkdir
        sweeps/in_bucket.py:claim: read_text write_text
        sweeps/results.py:unmark: unlink
        sweeps/trial.py:_reason: open
        train/health/peers.py:_sees: read_text
        train/health/peers.py:agree: unlink write_text
        train/health/spikes.py:make_log.log_spike: open
        train/metadata.py:write: write_text write_text
        workdir/mirror.py:Mirror.__init__: read_text
        workdir/mirror.py:Mirror.complete: fetch
        train/report/profile.py:Profiler.close: mkdir replace rmtree
        train/report/profile.py:Profiler.step: mkdir rmtree
        train/report/writers.py:JsonlWriter.__init__: open
        train/report/writers.py:make_writer: mkdir
        workdir/folder.py:lock: mkdir open truncate
        sweeps/report.py:write_page: read_bytes read_text
        text/vocabularies.py:clip_merges: read_bytes
        weights/published/table.py:_table: read_text
        weights/published/timm_config.py:architectures: read_text
    """,
    # A file, folder or program that the person names on the command line.
    "the person's own": """
        config/saved.py:load: exec_module spec_from_file_location
        cli/parsing/model_options.py:_names: read_bytes
        cli/predict.py:_sink: open
        cli/sweeps/plan.py:read: run_path
        cli/sweeps/plan.py:write: mkdir
        cli/sweeps/run.py:_open: mkdir
        visual/augmentation_sheets.py:_read_files: read_bytes
        weights/export.py:_order_metadata: open
        weights/export.py:save: replacing touch
        weights/files.py:first_bytes: open
        weights/published/table.py:_beside: open
    """,
    # What a listing of a directory of this machine has found there, or a whole number.
    "listed here": """
        evals/zero_shot.py:templates: read_text
        checkpoints/copies.py:readable: mkdir read_text rmtree unlink
        checkpoints/storage.py:_why: open
        checkpoints/storage.py:clear: rmtree
        checkpoints/storage.py:delete: rename rmtree
        checkpoints/storage.py:set_aside: rename
        settings/config_files.py:read: read_text
        data/sources/look.py:_digest: open
        data/sources/copy_records.py:_digest: open
        data/sources/copy_records.py:_finish: unlink
        data/sources/arrays.py:_see: open
        data/sources/look.py:_see: open
        data/sources/look.py:is_image: open
        evals/probes/features.py:written: mkdir read_text replace rmtree rmtree unlink unlink
        process/startup.py:_prune: unlink
        sweeps/in_bucket.py:_is_locked: open
        workdir/mirror.py:Mirror._send_small: read_bytes
    """,
    # A run's name, which `point.read_manifest` and `Point.workdir` have looked at.
    "a checked run": """
        sweeps/point.py:add_to_manifest: mkdir open truncate
        sweeps/trial.py:_start: Popen open
        sweeps/trial.py:train: mkdir
    """,
    # Modules of this package, of its requirements and of jax; no name comes from a file.
    "our own code": """
        __init__.py:_Moved.exec_module: import_module
        __init__.py:__getattr__: import_module
        cost/topology.py:_log: Popen
        cli/checks/machine.py:imports: import_module
        cli/sweep.py:main: import_module
        distill/__init__.py:__getattr__: import_module
        models/__init__.py:_family: import_module
        objectives/__init__.py:_file: import_module
        recipes/__init__.py:__getattr__: import_module
        process/launch.py:load: import_module
        train/report/writers.py:_imported: import_module
    """,
    # Readers of a stranger's data that build nothing but arrays, numbers and text.
    "no program": """
        checkpoints/storage.py:_load: load
        data/sources/sharded/hub_files.py:_card: safe_load
        data/sources/dense/yolo.py:_yaml: safe_load
        data/sources/records.py:TfdsSource.__init__: builder_from_directory
        evals/drift.py:_read: load
        export/stablehlo.py:runner: load
        weights/readers/npz_file.py:_Npz.__init__: open
        weights/readers/npz_file.py:_Npz.read: open
        weights/readers/npz_file.py:opened: ZipFile
        weights/readers/safetensors_file.py:_first_lie: open
        weights/readers/safetensors_file.py:opened: safe_open
        weights/published/timm_config.py:_value: literal_eval
        weights/readers/torch_file.py:_check_zip: ZipFile
        weights/readers/torch_file.py:opened: load
    """,
    # Not of a file: `dataclasses.replace` by another name, an object's own `open`.
    "no file": """
        cli/parsing/by_name.py:_set_evaluation: replace
        cli/parsing/flags.py:_status: open
        process/output.py:show: open
        data/sources/folders.py:open_folder: open
        data/sources/dense/annotated.py:open_root: open
        inference/evaluate.py:open_split: replace
        recipes/continued.py:_config: replace
        recipes/dino.py:_large: replace
        recipes/unlabelled.py:_dino: replace replace replace replace
        recipes/unlabelled.py:digits: replace replace
        recipes/unlabelled.py:glyphs: replace
        train/adapted.py:LoraObjective.open: open
        train/begin.py:open_extras: open
    """,
}
# Calls that would make a program of data, wherever they stand.
NEVER = {"exec", "eval", "__import__", "unsafe_load", "full_load", "extractall", "unpack_archive"}


def _call(node: ast.Call) -> str:
    """Name a call that is looked for; "" for others."""
    if isinstance(node.func, ast.Name):
        return node.func.id if node.func.id in _CALLED | _METHODS - {"replace", *_OF} else ""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _METHODS:
        return ""
    name, owner = node.func.attr, ast.unparse(node.func.value).rpartition(".")[2]
    if name in _OF and owner not in _OF[name]:
        return ""
    of_text = name == "replace" and (len(node.args) != 1 or node.keywords)
    return "" if of_text else name


def _functions(tree: ast.AST, name: str = "") -> dict[str, tuple[list[str], str]]:
    """Return the calls that are looked for in each function, and its text, by its dotted name."""
    found: dict[str, tuple[list[str], str]] = {}
    left: list[ast.AST] = list(ast.iter_child_nodes(tree))
    calls = []
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found |= _functions(node, f"{name}.{node.name}".strip("."))
            continue
        if isinstance(node, ast.Call) and (call := _call(node)):
            calls.append(call)
        left += ast.iter_child_nodes(node)
    if calls:
        found[name or "<module>"] = sorted(calls), ast.unparse(tree)
    return found


@functools.cache
def _all() -> dict[str, tuple[list[str], str]]:
    return {
        f"{path.relative_to(PACKAGE)}:{name}": value
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, value in _functions(ast.parse(path.read_text())).items()
    }


def _reviewed() -> dict[str, tuple[str, list[str]]]:
    """Return the reason and the calls of every function of the table."""
    return {
        line.rpartition(":")[0]: (reason, line.rpartition(":")[2].split())
        for reason, lines in REVIEWED.items()
        for line in map(str.strip, lines.strip().splitlines())
    }


def test_every_place_that_opens_or_runs_something_by_a_name_is_reviewed() -> None:
    there, reviewed = _all(), _reviewed()
    new = [
        f"{name}: {' '.join(calls)}"
        for name, (calls, _) in there.items()
        if reviewed.get(name, ("", []))[1] != calls
    ]
    gone = sorted(reviewed.keys() - there.keys())
    assert not new, (
        "look where the name comes from; make a foreign one a path by foreign.inside, "
        f"and write the lines into REVIEWED: {new}"
    )
    assert not gone, f"drop from REVIEWED: {gone}"


def test_foreign_names_go_through_the_one_function() -> None:
    there = _all()
    for name, (reason, _) in _reviewed().items():
        if reason == "foreign":
            assert "foreign." in there[name][1], name


def test_nothing_makes_a_program_of_data() -> None:
    for name, (calls, _) in _all().items():
        assert not NEVER & set(calls), name


@pytest.mark.parametrize(
    "text, calls",
    [
        ("def f(p, n): return open(p / n)", ["open"]),
        ("def f(p, n):\n  (p / n).write_bytes(b'')\n  shutil.rmtree(p)", ["rmtree", "write_bytes"]),
        ("def f(n): return [importlib.import_module(x) for x in n]", ["import_module"]),
        ("def f(n): return lambda: yaml.load(n)", ["load"]),
        ("def f(p, q): return p.replace(q)", ["replace"]),
        ("def f(t): return t.replace('a', 'b')", []),
    ],
)
def test_the_calls_are_found(text: str, calls: list[str]) -> None:
    assert _functions(ast.parse(text)).get("f", ([], ""))[0] == calls
