# SPDX-License-Identifier: Apache-2.0
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

LIVE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from vit_jax.train.report.progress import Progress
scalars = {"train/loss": 0.8123, "train/top1": 0.7123, "perf/mfu": 0.5}
with Progress(20, 32) as progress:
    for step in range(1, 21):
        time.sleep(0.02)
        progress.advance(step)
        if step % 5 == 0:
            progress.report(scalars)
        if step == 10:
            with progress.paused("evaluating val"):
                time.sleep(0.5)
            progress.report({"val/top1": 0.95})
            progress.message("saved [7] here")
"""


def test_live_bar_on_a_terminal():
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        [sys.executable, "-c", LIVE, str(Path(__file__).parents[4])],
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    raw = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        raw += piece
    os.close(ours)
    assert process.wait() == 0, raw
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw.decode())
    assert "evaluating val" in text
    assert "step 10  val: top1 95.0%" in text
    assert "saved [7] here" in text
    last = text.replace("\r", "\n").strip().split("\n")[-1]
    assert re.match(r"20/20 +\S+ 100% +loss 0.8123  top1 71.2%  mfu 50.0%", last), last
