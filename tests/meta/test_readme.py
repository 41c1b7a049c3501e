# SPDX-License-Identifier: Apache-2.0
"""Commands of README and docs run, and print what the pages show."""

import contextlib
import dataclasses
import importlib.util
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from benchmarks import scenes, several_labels
from configs import vit_mu_digits
from tests import banded, captioned, layouts
from tests.meta.pages import (
    COMMANDS,
    ROOT,
    TEXTS,
    Block,
    Command,
    blocks,
    by_python,
    commands,
    make,
    python_of,
)
from tests.photos import write_folder
from tests.undrawn import undrawn  # noqa: F401  (`made` draws)
from vit_jax import config as config_lib
from vit_jax.__main__ import main as verb_main
from vit_jax.cli.train import main as train_main
from vit_jax.train.report.writers import read_jsonl

# Commands that need a network, an accelerator, a cluster or a set-up of their own: their flags and
# paths are checked, but they are not run. Everything else is, or is planned (`PLANNED`).
OUTSIDE = {
    "~/venv-tf/bin/pip",
    "~/venv-tf/bin/vit_jax",
    "curl",
    "export",
    "gcloud",
    "git",
    "mpirun",
    "pip",
    "pyright",
    "pytest",
    "python3",
    "ruff",
    "source",
    "srun",
    "tensorboard",
    "until",
    "xpk",
}


def _runs_here(command: Command) -> bool:
    """Say whether a command can run here: no server, no upload, no weights from outside."""
    # Sweeps of the same names, over at once, are run by tests/meta/test_scaling_docs.py,
    # compilers by tests/integration/cli/test_compile_for.py, merging by
    # tests/integration/train/test_adapted.py, pairs that start from weights by
    # tests/integration/test_configs.py.
    elsewhere = (
        r"--from=(npz|timm|hub|hf):|--from=ckpt:runs/lora|vit_jax serve|--push=|"
        r"vit_jax sweep (run|status|report)|--compile_for=|configs/(finetune|lit)_imagetext"
    )
    outside = re.search(elsewhere, " ".join(command.words))
    needs_onnx = "--format=onnx" in command.words
    return not outside and (not needs_onnx or importlib.util.find_spec("jax2onnx") is not None)


# Pages that use the run of `make train`, each command in the place where those before it worked.
IN_ORDER = [
    f"docs/{name}.md"
    for name in ("predict", "evaluate", "probe", "visualize", "export", "token_merging", "prune")
    if f"docs/{name}.md" in TEXTS
]
# Here too, each command needs what those before it made; tests/meta/test_distill_docs.py and
# tests/meta/test_scaling_docs.py run them.
APART = [*IN_ORDER, "docs/distill.md", "docs/scaling.md"]
# Shell blocks with the text block after them, what the commands are said to print; a training run
# is shortened and prints something else.
SHOWN = [
    (before, after)
    for page in TEXTS
    if page not in IN_ORDER and page != "docs/scaling.md"
    for before, after in itertools.pairwise(blocks(page))
    if (before.language, after.language) == ("sh", "text")
    and any(c.words[0] == "python" for c in commands(before))
]
PRINTING = [c for block, _ in SHOWN for c in commands(block) if "--workdir" not in block.text]


def _same(command: Command) -> tuple[str, ...]:
    """Drop where a command writes, and how it augments: what is left says what it does."""
    dropped = ("--workdir=", "--config.data.transform.")
    return tuple(w for w in command.words if not w.startswith(dropped))


# What two pages say is run once: in order, if it is there.
_ONCE = {_same(c): c for c in reversed(COMMANDS) if c.page not in APART}
_ONCE |= {_same(c): c for c in COMMANDS if c.page in APART}
RUN = [
    c
    for c in COMMANDS
    if c.words[0] == "python" and c.page not in APART and c not in PRINTING and _runs_here(c)
    if _ONCE[_same(c)] is c
]
# Another's start: it is trained there.
_STARTS = {c.words for c in RUN if "--workdir=runs/fractals" in c.words}


def _kind(command: Command) -> tuple[str, ...]:
    """Return the recipe of a run, and what else decides how it goes."""
    (config,) = [w for w in command.words if w.startswith("--config=")]
    recipe = re.sub("_(digits|folder)$", "", Path(config[9:].partition(":")[0]).stem)
    ways = ("--config.init.weights=", "--config.lora.", "--profile=")
    return recipe, *(way for way in ways if any(w.startswith(way) for w in command.words))


# The first run of each kind is trained, but ImageNet's (tests/integration/test_configs.py). Others
# are planned by --dry_run, which reads data and weights, checks every field and traces a step.
_RUNS = [c for c in RUN if any(w.startswith("--workdir=") for w in c.words)]
_FIRST = {kind: c.words for c in reversed(_RUNS) if "imagenet" not in (kind := _kind(c))[0]}
PLANNED = {c.words for c in _RUNS} - {*_FIRST.values()} - _STARTS
# The width of all that is trained here.
SMALL = {"dim": "16", "num_heads": "4", "mlp_dim": "32"}


def test_pages_have_commands_and_only_known_ones() -> None:
    own = [c for c in COMMANDS if c.page == "README.md" and c.words[0] == "python"]
    assert len(own) >= 6  # each is run, here or with the page that has it too
    assert all(_ONCE[_same(c)] in RUN or _ONCE[_same(c)].page in APART for c in own)
    inner = {"[", "done"}  # the lines of a shell loop
    for command in COMMANDS:
        known = OUTSIDE | inner | {"python", "make"}
        assert command.words[0] in known, f"{command}: run it, or list it in OUTSIDE"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_folder(tmp_path / "photos", {"train": 8, "val": 3}, ("china", "flower", "sky"))
    return tmp_path / "photos"


def _of_layouts(word: str, tmp_path: Path) -> str:
    """Name one of `tests.layouts` where docs/own_data.md names a dataset."""
    found = re.fullmatch(
        r"(?:(?:masks|coco|voc|yolo|depth):)?(?:scenes|coco|VOC|insects|rooms)\b.*", word
    )
    if found is None:
        return word
    root = tmp_path / "layouts"
    root = root if root.exists() else layouts.write(root)
    return re.sub(r"^((?:\w+:)?)|(?<==)(?=coco/)", rf"\g<1>{root}/", word)


def shorten(words: tuple[str, ...], tmp_path: Path, photos: Path) -> list[str]:
    """Keep what a command says; cut a training run to three steps of a small model."""
    if any(re.match("--(config.data.)?bands=", word) for word in words):
        photos = banded.write_folder(tmp_path / "banded")
        found = {"mean": [0.1] * 12, "std": [0.1] * 12, "dtype": "uint16", "bands": ["all"]}
        (tmp_path / "statistics.json").write_text(json.dumps(found))
        file = f"--config.data.statistics={tmp_path}/statistics.json"
        words = tuple(file if ".statistics=" in word else word for word in words)
    if "prepare" in words:
        out = [re.sub("^--out=", f"--out={tmp_path}/", word) for word in words]
        return [f"folder:{photos}" if ":" in word and "=" not in word else word for word in out]
    if "check-data" in words:
        out = [re.sub("^(--csv|--sheet)=", rf"\1={tmp_path}/", word) for word in words]
        own = ("photos/birds", "folder:PATH")
        words = [f"folder:{photos}" if word in own else word for word in out]
        return [_of_layouts(word, tmp_path) for word in words]
    if "train-tokenizer" in words:
        table = captioned.write(tmp_path / "captioned")
        out = [re.sub("^--out=", f"--out={tmp_path}/", word) for word in words]
        return [f"csv:{table}" if word == "csv:captions.csv" else word for word in out]
    if "visualize" in words:  # its flags take several words
        return [re.sub("^--out=", f"--out={tmp_path}/", word) for word in words]
    flags = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
    plain = [word for word in words if not word.startswith("--")]
    if "--workdir" in flags:
        flags["--workdir"] = str(tmp_path / "run")
        flags["--config.duration"] = "3 steps"
        flags["--config.optim.warmup"] = "1 steps"
        flags["--config.log.every"] = "1 steps"
        flags["--config.model.scan_unroll"] = "1"
        if "--profile" in flags:
            flags["--profile"] = "2,2"
        flags |= {f"--config.model.{name}": size for name, size in SMALL.items()}
        flags["--config.data.num_workers"] = "0"  # these have tests of their own
        if ":mae" in flags["--config"]:
            flags["--config.objective.decoder_depth"] = "1"
        if "_folder" in flags["--config"]:  # which takes all else from the images
            given = flags.get("--config.data.name", "")
            named = _of_layouts(given, tmp_path)
            if "runs/digits_tables" in given:
                several_labels.write(tmp_path / "tables")
                named = given.replace("runs/digits_tables", f"{tmp_path}/tables")
            flags["--config.data.name"] = str(photos) if named == given else named
            flags["--config.model.image_size"] = "64"
        elif "configs/scenes" in flags["--config"]:
            scenes.write(tmp_path / "scenes", share=0.003)
            coco = f"coco:{tmp_path}/scenes/coco?images={tmp_path}/scenes/images"
            of_objects = ":instances" in flags["--config"]
            flags["--config.data.name"] = coco if of_objects else f"masks:{tmp_path}/scenes"
            flags["--config.init.weights="] = ""
        elif "captions_small" in flags["--config"]:
            flags["--config.data.name"] = f"csv:{captioned.write(tmp_path / 'captioned')}"
            words_file = captioned.write_tokenizer(tmp_path / "words.json")
            flags["--config.objective.tokenizer"] = str(words_file)
            flags["--config.objective.text.vocab_size"] = str(captioned.SIZE)
        elif "fractals" in flags["--config"]:  # to draw 1,000 takes a quarter of a minute
            flags |= {"--config.data.name": "fractals/2", "--config.model.num_classes": "2"}
        elif "digits" not in flags["--config"]:
            flags |= {
                "--config.data.name": f"folder:{photos}",
                "--config.model.num_classes": "3",
                "--config.model.image_size": "32",
                "--config.model.depth": "1",
            }
            evals = {"minival": "train[80%:]", "val": "val"}
            if "vit_cifar10" in flags["--config"]:
                evals = {"test": "val"}
            flags = {
                "--config": flags["--config"],
                "--config.data.train_split": "train[:80%]",
                **{f"--config.evals.{name}.split": split for name, split in evals.items()},
                **flags,
            }
        flags["--config.data.batch_size"] = "16"
    training = words[1] == "main.py" or words[3:4] == ("train",)
    if training and not any(name.startswith("--config.mesh") for name in flags):
        flags["--config.mesh.data"] = "1"  # as on a laptop: the tests' eight devices are virtual
    return plain + [f"{name}={value}" if value else name for name, value in flags.items()]


def call(words: list[str]) -> tuple[int, str, str]:
    """Run `python main.py ...` or `vit_jax ...` in this process; status and output."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        if words[1] == "-W":  # Python's own flag: ACTION:the beginning of a message
            action, _, message = words[2].partition(":")
            assert action == "error"
            warnings.filterwarnings("error", message)
            words = [words[0], *words[3:]]
        if words[1] == "main.py":
            status = train_main(words[1:])
        else:
            assert words[1:3] == ["-m", "vit_jax"], words
            status = verb_main(words[2:])
    return status, out.getvalue(), err.getvalue()


def call_well(command: Command, tmp_path: Path, photos: Path) -> str:
    """Call a command, shortened, which must succeed; returns what it printed."""
    status, out, err = call(shorten(command.words, tmp_path, photos))
    if "--dry_run" in command.words and re.search("no dataset|matches no file", err):
        assert (status, "PARAMETERS" in out) == (2, True), f"{command}: {err}"
    else:
        assert status == 0, f"{command}: {err}"
    return out


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def _slow_outside_readme(command: Command) -> object:
    marks = [] if command.page == "README.md" else [pytest.mark.slow]
    return pytest.param(command, marks=marks, id=str(command))


@pytest.mark.usefixtures("at_root")
@pytest.mark.parametrize(
    "command", [_slow_outside_readme(c) for c in RUN if c.words not in _STARTS]
)
def test_command_runs(
    command: Command, tmp_path: Path, photos: Path, request: pytest.FixtureRequest
) -> None:
    words = command.words
    if re.search(r"(=ckpt:|--from=)runs/", " ".join(words)):
        request.getfixturevalue("place")
    if "--config.init.weights=ckpt:runs/fractals" in words:  # of the command before it
        (before,) = [c for c in RUN if c.words in _STARTS]
        call_well(before, tmp_path / "before", photos)
        assert last_step(tmp_path / "before" / "run") == 3
        weights = f"--config.init.weights=ckpt:{tmp_path / 'before' / 'run'}"
        rest = tuple(word for word in words if "init.weights" not in word)
        command = dataclasses.replace(command, words=(*rest, weights))
    if words in PLANNED:
        plan = dataclasses.replace(command, words=(*command.words, "--dry_run"))
        assert "\nRUN\n" in call_well(plan, tmp_path, photos)
        return
    call_well(command, tmp_path, photos)
    if any(word.startswith("--workdir") for word in command.words):
        assert last_step(tmp_path / "run") == 3
        assert (tmp_path / "run" / "learning_curve.png").is_file()


def last_step(workdir: Path) -> int:
    return read_jsonl(workdir / "metrics.jsonl")[-1]["step"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Take three steps of what `make train` trains, narrower; returns where, and what it said."""
    place = tmp_path_factory.mktemp("made")
    (line,) = [line for line in make("-n", "train").splitlines() if "main.py" in line]
    _, *words = shlex.split(line)
    workdir = next(w for w in words if w.startswith("--workdir=")).removeprefix("--workdir=")
    words[words.index(f"--workdir={workdir}")] = f"--workdir={place / workdir}"
    cut = [
        "--config.duration=3 steps",
        "--config.optim.warmup=1 steps",
        "--config.model.scan_unroll=1",
        *(f"--config.model.{name}={size}" for name, size in SMALL.items()),
    ]
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    out = subprocess.run(
        [sys.executable, *words, *cut], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert out.returncode == 0, out.stderr
    return place, out.stdout


@pytest.fixture
def place(made: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go where the repository's files and the run of `made` can be read and all be written."""
    for name in ("configs", "docs", "benchmarks", "examples"):
        if (ROOT / name).exists():
            (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "runs").symlink_to(made[0] / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("page", IN_ORDER)
def test_page_runs_in_order(page: str, photos: Path) -> None:
    here, ran = [*blocks(page), Block(page, "", "")], 0
    for block, after in itertools.pairwise(here):
        if block.language != "sh":
            continue
        printed = set()
        for command in commands(block):
            if command.words[0] != "python" or not _runs_here(command):
                continue
            if command.words[1] == "-c":
                code = [sys.executable, *command.words[1:]]
                env = {**os.environ, "PYTHONPATH": str(ROOT)}  # where a user's shell is
                done = subprocess.run(code, capture_output=True, text=True, env=env)
                status, out, err = done.returncode, done.stdout, done.stderr
            else:
                cut = "--config.duration=10 steps"
                words = [cut if "config.duration=" in word else word for word in command.words]
                status, out, err = call(words)
            assert status == 0, f"{command}: {err}"
            printed |= {_shape(line) for line in (out + err).splitlines()}
            ran += 1
        if after.language == "text" and printed:
            for line in after.text.splitlines():
                assert line == "..." or _shape(line) in printed, line
    assert ran, f"no command of {page} runs"


def _shape(line: str) -> str:
    """Drop numbers, widths, and the rate and time left, which a run's first steps do not know."""
    line = re.sub(r"  [\d.,]+ img/s|  eta \S+", "", line)
    line = re.sub(r"[-+]?\d[\d.,]*(e[+-]\d+)?", "0", line)
    return " ".join(re.sub(r"[-─━]{3,}", "---", line).split())


def test_make_train_prints_and_leaves_what_the_readme_shows(made: tuple[Path, str]) -> None:
    place, printed = made
    shown = TEXTS["README.md"].split("<!-- train-output -->")[1].split("<!-- /train-output -->")[0]
    shapes = {_shape(line) for line in shown.splitlines()}
    for line in printed.replace(f"{place}/", "").splitlines():
        assert _shape(line) in shapes, line
    assert (place / "runs" / "vit_mu_digits" / "learning_curve.png").is_file()


def _console() -> list[object]:
    """List (command, what it prints) of the pages' console blocks."""
    cases = []
    for page in TEXTS:
        for block in blocks(page):
            if block.language == "console":
                for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                    command, _, output = part.partition("\n")
                    cases.append(pytest.param(command, output, id=f"{page}: {command[-40:]}"))
    return cases


@pytest.mark.usefixtures("at_root")
@pytest.mark.parametrize("command, output", _console())
def test_console_shows_the_real_output(command: str, output: str) -> None:
    _, out, err = call(by_python(shlex.split(command)))
    assert (out + err).strip() == output.strip()


@pytest.mark.usefixtures("at_root")
@pytest.mark.parametrize(
    "before, block", SHOWN, ids=[f"{before.page}: {before.text[:60]!r}" for before, _ in SHOWN]
)
def test_shown_lines_are_printed(
    before: Block, block: Block, tmp_path: Path, photos: Path, request: pytest.FixtureRequest
) -> None:
    of_a_run = re.search(r"(=ckpt:|--from=)runs/", before.text) is not None
    if of_a_run:  # numbers are those of a whole run
        request.getfixturevalue("place")
    printed = set()
    for command in commands(before):
        lines = call_well(command, tmp_path, photos).splitlines()
        printed |= {_shape(x) if of_a_run else " ".join(x.split()).strip("-") for x in lines}
    for line in block.text.splitlines():
        if line != "...":
            shown = _shape(line) if of_a_run else " ".join(line.split()).strip("-")
            assert shown in printed, line


@pytest.mark.slow
def test_a_checkpoint_is_read_as_shown(
    made: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def narrow() -> config_lib.Config:
        cfg = whole()
        sizes = {name: int(size) for name, size in SMALL.items()}
        cfg.model = dataclasses.replace(cfg.model, **sizes)
        return cfg

    whole = vit_mu_digits.get_config
    monkeypatch.setattr(vit_mu_digits, "get_config", narrow)
    monkeypatch.chdir(made[0])
    exec(python_of("docs/checkpoints.md"), {})
    steps, restored = capsys.readouterr().out.strip().splitlines()
    assert steps.startswith("[3] ")
    assert restored.startswith("3 [")
