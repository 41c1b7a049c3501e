# SPDX-License-Identifier: Apache-2.0
"""A save counts when it can be read; what the system does not let be read is not damaged."""

import shutil
import string
import subprocess
import sys
from pathlib import Path

import jax

from tests.refusals import refused_by
from tests.unit.checkpoints.test_storage import STATE, restored_step, saved
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer

PATTERN = "*?[]\\"


def test_every_printable_character_saves_and_restores_or_is_refused(tmp_path: Path) -> None:
    printable = {c for c in string.printable if c.isprintable()} - {"/"}
    fine = "".join(sorted(printable - set(PATTERN)))
    for name in (fine[:45], fine[45:], " lead", "trail ", "-dash", "~", "$HOME", "%41", "é☃"):
        place = tmp_path / f"of {name}" / name / "checkpoints"
        saved(place, (1,))
        assert restored_step(place) == 1, name
    for character in PATTERN:
        place = tmp_path / f"lr={character}1" / "checkpoints"
        with refused_by("checkpoints.config.check_path") as error:
            saved(place, (1,))
        assert f" {character} " in str(error.value)
        assert not place.exists()


def test_without_any_one_file_a_key_is_a_key(tmp_path: Path) -> None:
    """Orbax, where it lacks what says so, returns a key's numbers, which no run could save."""
    state = {**STATE, "rng": jax.random.key(1)}
    wanted = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    checkpoints = Checkpointer(tmp_path / "run", CheckpointConfig())
    for step in (1, 2):
        checkpoints.save(step, state, metadata={})
    checkpoints.wait()
    files = [p for p in (tmp_path / "run" / "2").rglob("*") if p.is_file()]
    assert len(files) > 5
    for n, file in enumerate(files):
        shutil.copytree(tmp_path / "run", tmp_path / str(n))
        (tmp_path / str(n) / file.relative_to(tmp_path / "run")).unlink()
        restored = Checkpointer(tmp_path / str(n), CheckpointConfig()).restore(wanted)
        assert restored is not None
        assert restored.state["rng"].dtype == state["rng"].dtype, file


def test_nothing_is_said_as_python_ends() -> None:
    code = (
        "import sys, traceback\n"
        "from vit_jax.checkpoints import failures\n"
        "failures.silence_orbax()\n"
        "class Late:\n"
        "    def __del__(self): raise RuntimeError('late')\n"
        "late = Late()\n"
        "sys.is_finalizing, traceback.extract_tb = lambda: True, None\n"  # as at Python's end
        "del late\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
