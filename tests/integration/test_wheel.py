# SPDX-License-Identifier: Apache-2.0
"""The wheel, in an environment and a directory of its own, does all that the clone does."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy: a build writes into its source tree."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("vit_jax", "configs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(out), str(copy)], check=True, capture_output=True)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel beside the packages of this environment, but for this project's own."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    # A path in a .pth file adds the packages there; the .pth files there, such as an editable
    # install's, are not read.
    (packages / "others.pth").write_text(str(Path(pytest.__file__).parents[1]))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    return folder / "bin"


def run(
    bin_folder: Path, words: str, cwd: Path, status: int = 0, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the console script in a directory; `status` is the expected one."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [
            str(bin_folder / "vit_jax"),
            *(word.replace("_steps", " steps") for word in words.split()),
        ],
        cwd=cwd,
        env={**kept, "TFDS_DATA_DIR": str(cwd / "tfds"), **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_every_package_is_in_it(wheel: Path) -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = tools["package-dir"]
    files = {
        f"{package.replace('.', '/')}/{file.name}"
        for package in tools["packages"]
        for file in (ROOT / folders.get(package, package.replace(".", "/"))).iterdir()
        if file.is_file()
    }
    names = zipfile.ZipFile(wheel).namelist()
    files |= {
        str(Path(package.replace(".", "/"), file.relative_to(folder)))
        for package, patterns in tools["package-data"].items()
        for folder in [ROOT / package.replace(".", "/")]
        for pattern in patterns
        for file in folder.glob(pattern)
    }
    assert files == {name for name in names if ".dist-info/" not in name}
    here = {path.parent for path in (ROOT / "vit_jax").rglob("*.py")}
    covered = {ROOT / folders.get(p, p.replace(".", "/")) for p in tools["packages"]}
    assert here <= covered


@pytest.mark.slow
def test_it_trains_and_predicts_elsewhere(bin_folder: Path, tmp_path: Path) -> None:
    listed = run(bin_folder, "configs", tmp_path).stdout
    folder = Path(listed.splitlines()[-1].removeprefix("the files: "))
    assert folder.parent.name == "vit_jax"
    assert not folder.is_relative_to(ROOT)
    words = "--config.log.tensorboard=false --config.duration=2_steps --config.optim.warmup=0_steps"
    words += " --config.evals.test.report=false"
    shutil.copy(folder / "vit_mu_digits.py", tmp_path / "mine.py")
    trained = run(bin_folder, f"train --config=mine.py --workdir=runs/a {words}", tmp_path)
    assert "step 2/2" in trained.stdout
    image = ROOT / "docs" / "images" / "digits" / "3.png"
    told = run(bin_folder, f"predict --from=runs/a {image} --top=1", tmp_path)
    assert told.stdout.startswith(str(image))
    planned = run(bin_folder, "sweep plan scaling_digits", tmp_path)  # of vit_mu_digits, by name
    assert '"name"' in planned.stdout


_WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
"""


def test_predicting_needs_nothing_of_training(bin_folder: Path, tmp_path: Path) -> None:
    image = ROOT / "docs" / "images" / "digits" / "3.png"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["train"]
    names = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in extra}
    names = (names - {"scikit_learn"}) | {"sklearn"}
    assert {"grain", "tensorflow_datasets", "sklearn", "matplotlib"} <= names
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT.format(packages=names))
    run_folder = ROOT / "tests" / "golden" / "run_jax_0_10_0"
    words = f"predict --from={run_folder} {image} --top=1 --format=jsonl"
    told = run(bin_folder, words, tmp_path, PYTHONPATH=str(tmp_path))
    assert len(json.loads(told.stdout)["predictions"]) == 1
    words = "train --config=vit_mu_digits --workdir=x"
    wrong = run(bin_folder, words, tmp_path, 2, PYTHONPATH=str(tmp_path))
    (line,) = wrong.stderr.splitlines()
    assert re.match(r"error: the package '\w+' is not installed; .*'vitjax\[train\]'", line)


def test_a_mistake_is_one_line(bin_folder: Path, tmp_path: Path) -> None:
    wrong = run(bin_folder, "train --config=deit_s16_imagenette --workdir=x", tmp_path, 2)
    assert wrong.stderr.startswith("error: unknown config file 'deit_s16_imagenette'; ")
    assert list(tmp_path.iterdir()) == []


def test_another_package_of_that_name_is_refused(bin_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "vision_transformer" / "vit_jax"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("# Copyright\n")
    done = run(bin_folder, "configs", tmp_path, 2, PYTHONPATH=str(other.parent))
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: Python imports another package as vit_jax, from {other}")
    assert "pip uninstall vit_jax" in line
