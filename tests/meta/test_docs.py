# SPDX-License-Identifier: Apache-2.0
"""README and docs say what is true: names, paths, flags, fields and tables."""

import dataclasses
import pkgutil
import re
from pathlib import Path

import jax
import pytest

from tests.meta.pages import ROOT, TEXTS, blocks, commands, make, python_of
from tests.unit.test_configs import FILES as CONFIG_FILES
from tests.unit.test_configs import load
from vit_jax import config as config_lib
from vit_jax import data, evals, models, objectives, optim, trees
from vit_jax.cli.parsing.by_name import set_groups
from vit_jax.cost import flops
from vit_jax.devices import sharding
from vit_jax.distill import TeacherConfig
from vit_jax.models.families import hybrid, vit_family
from vit_jax.models.lora import LoraConfig
from vit_jax.settings.names import check_path
from vit_jax.weights.config import InitConfig


def test_a_page_begins_with_a_command(subtests: pytest.Subtests) -> None:
    for page in [page for page in TEXTS if page.startswith("docs/")]:
        with subtests.test(page):
            assert "python -m vit_jax " not in TEXTS[page]
            if page not in ("docs/index.md", "docs/commands.md"):
                words = TEXTS[page].partition("\n```")[0].split()
                assert len(words) < 50, f"{page} has {len(words)} words before its first command"


def test_make_targets_exist(subtests: pytest.Subtests) -> None:
    for page in TEXTS:
        with subtests.test(page):
            lines = "\n".join(b.text for b in blocks(page) if b.language == "sh")
            for target in re.findall(r"`make ([\w-]+)`", TEXTS[page]) + re.findall(
                r"^make ([\w-]+)", lines, re.MULTILINE
            ):
                make("-n", target)


def _config_of(words: tuple[str, ...] | list[str]) -> config_lib.Config:
    named = [m for w in words if (m := re.search(r"--config=(\S+\.py)(?::(\w+)$)?", w))]
    path, run = named[0].groups() if named else ("configs/vit_mu_digits.py", None)
    cfg = load(ROOT / path, run or "")
    if not named:  # text may speak of the fields of every objective
        cfg.objective = objectives.DistillConfig()
    return cfg


def test_flags_name_fields_that_exist(subtests: pytest.Subtests) -> None:
    for page in TEXTS:
        with subtests.test(page):
            text = TEXTS[page]
            for block in blocks(page):
                if block.language in ("sh", "bash"):
                    for command in commands(block):
                        _check_flags(" ".join(command.words), _config_of(command.words))
                text = text.replace(block.text, "")
            _check_flags(text, _config_of([]))


def _check_flags(text: str, cfg: config_lib.Config) -> None:
    # A group that is dropped here may be spoken of elsewhere.
    set_groups(cfg, re.findall(r"--config\.[\w.]+=(?!none)[a-z]\w*", text))
    for path in re.findall(r"--config\.([a-z_][\w.]*\w)", text):
        check_path(cfg, path)
    for name in re.findall(r"--config=(\S+\.py)", text):
        assert (ROOT / name).is_file() or f"`{name}`:" in text, name  # or the page writes it
    for flag in re.findall(r"main\.py\b[^`]*?\s--(?!config)(\w+)", text):
        known = {"workdir", "dry_run", "all_fields", "compile_for", "debug", "profile"}
        known |= {"allow_config_change", "allow_data_change"}
        assert flag in known, flag


def test_names_and_paths_exist(subtests: pytest.Subtests) -> None:
    for page in TEXTS:
        with subtests.test(page):
            text = TEXTS[page]
            for target in re.findall(r"\]\(([^)#]+)", text):
                if not target.startswith("http"):
                    assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
            places = r"(?:vit_jax|configs|tests|docs|benchmarks|requirements|\.ci)"
            for path in re.findall(rf"`({places}[\w/.-]*)`", text):
                if "/" in path or path.endswith(".txt"):
                    assert (ROOT / path).exists(), f"{page} speaks of {path}"
            for name in re.findall(r"`(vit_jax(?:\.\w+)+)`", text):
                pkgutil.resolve_name(name)
            groups = "model|init|data|optim|objective|mesh|checkpoint|log"
            # There `model` is a Model, or timm's.
            python = page in ("docs/python.md", "docs/from_timm.md", "docs/nnx.md")
            for path in re.findall(rf"`((?:{groups})\.\w[\w.]*)`", text):
                if not (python and path.startswith("model.")):
                    check_path(_config_of([]), path)
            for recipe in re.findall(r"`variant\((.*?)\)`", text):
                enums = {"Standardise": hybrid.Standardise}
                enums |= {name: getattr(vit_family, name) for name in ("Gelu", "Pool", "PosEmbed")}
                models.create(eval(f"models.variant({recipe})", {"models": models, **enums}))


def test_every_config_field_is_documented() -> None:
    documented = set(re.findall(r"`(?:\w+\.)*(\w+)`", TEXTS["docs/configs.md"]))
    model = set(re.findall(r"`(\w+)`", TEXTS["docs/models.md"]))
    for cls in (
        config_lib.Config,
        config_lib.CheckpointConfig,
        config_lib.LogConfig,
        config_lib.FaultsConfig,
        data.DataConfig,
        data.TransformConfig,
        *evals.EVALUATORS,
        *map(objectives.config_class, objectives.OBJECTIVES),
        TeacherConfig,
        optim.OptimConfig,
        sharding.MeshConfig,
        InitConfig,
        LoraConfig,
    ):
        groups = {
            "init",
            "lora",
            "data",
            "optim",
            "objective",
            "evals",
            "mesh",
            "checkpoint",
            "log",
        }
        groups |= {"faults"}
        missing = {f.name for f in dataclasses.fields(cls)} - documented - groups
        assert not missing, f"docs/configs.md lacks {missing} of {cls.__name__}"
    for cls in {type(cfg) for cfg in models.VARIANTS.values()}:
        missing = {f.name for f in dataclasses.fields(cls)} - model
        assert not missing, f"docs/models.md lacks {missing} of {cls.__name__}"
    digits = re.search(r"`configs/\{(.*?)\}_digits.py`", TEXTS["docs/reproduce.md"])[1]
    named = {f"{name}_digits" for name in digits.split(",")}
    named |= set(re.findall(r"`configs/(\w+)\.py(?::\w+)?`", TEXTS["docs/reproduce.md"]))
    assert {path.stem for path in CONFIG_FILES} == named
    for page in sorted((ROOT / "docs").glob("*.md")):
        assert page.stem == "index" or f"({page.name})" in TEXTS["docs/index.md"], page


@pytest.mark.slow
def test_table_of_sizes() -> None:
    table = TEXTS["docs/models.md"].partition("## Sizes of the plain ViTs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(vit_\w+)` \|(.*)\|$", table, re.MULTILINE)
    assert len(rows) >= 10
    for name, cells in rows:
        *sizes, params, gmacs = (float(cell.replace(",", "")) for cell in cells.split("|"))
        cfg = models.variant(name, scan_unroll=1)
        assert sizes == [cfg.dim, cfg.depth, cfg.num_heads, cfg.mlp_dim], name
        module = models.create(cfg)
        shapes = jax.eval_shape(
            lambda k, m=module, c=cfg: models.init(m, c, k)[0], jax.random.key(0)
        )
        assert trees.num_params(shapes) == params, name
        digits = len(cells.split("|")[-1].split(".")[-1].strip())
        assert round(flops.forward_flops(module, 224) / 2e9, digits) == gmacs, name


def test_the_example_config_is_one() -> None:
    names: dict = {}
    exec(python_of("docs/configs.md"), names)
    config_lib.check(names["get_config"]())


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/models.md", "docs/weights.md", "docs/distill.md"])
def test_the_example_prints_what_it_says(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = python_of(page)
    exec(code, {})
    assert capsys.readouterr().out.strip() == code.rsplit("# ", 1)[1].strip()
