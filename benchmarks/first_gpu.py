# SPDX-License-Identifier: Apache-2.0
"""The first hour on a GPU or TPU: whether this device computes what a CPU does, and how fast.

    python -m benchmarks.first_gpu            # or `make first-gpu`: 45 minutes at most
    python -m benchmarks.first_gpu --only parity attention
    python -m benchmarks.first_gpu --small    # the same parts on small models, on any machine

Each part is a process of its own with a limit of its own, and `results/first-gpu-DEVICE.json` is
written after each: a part that has ended well at this commit is not run again, so that an hour that
is cut short goes on where it stopped. A part that fails or runs out of time says why there, and the
next one starts.

parity: forward pass, gradient, one step and StableHLO export of a model of every family, beside
the same on this machine's CPU, in float32 at highest precision. resume: a run that is stopped by
SIGTERM and continued has the bits of one that was not. mfu: training steps of ViT S, B and L in
bfloat16, beside timm by torch.compile where torch is installed. attention: seconds of each kernel,
forward and backward, and whether `auto` takes the fastest. cifar10: docs/cifar10.md's run, as far
as its share of the time reaches; it continues when the part is run again.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import record

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "first_gpu"

# A model of every family, the smallest that is published.
FAMILIES = (
    "vit_ti16",
    "deit_ti16_distilled",
    "cait_xxs24",
    "convit_ti",
    "swin_t",
    "mixer_s32",
    "bit_r50x1",
    "r26_vit_s32",
    "regnety_400mf",
    "convnext_t",
    "hiera_t",
    "vit_s14_dinov2",
    "vit_s16_dinov3",
)
# The networks that are compared have so many classes, see so many images at once, and multiply so
# exactly on a device.
CLASSES, IMAGES, PRECISION = 10, 2, "highest"
# How far float32 at highest precision may be from the CPU's, relative to the largest value: twice
# what goldens allow between two libraries on one CPU.
FORWARD, GRADIENT = 1e-4, 1e-3
# (images, heads, tokens, head width): S, B and L at 224 pixels, L at 384, long rows of 1,024.
SHAPES = ((256, 6, 197, 64), (256, 12, 197, 64), (128, 16, 197, 64), (32, 16, 577, 64))
LONG = (16, 16, 1024, 64)
SMALL_CHIPS = ("TPU v2", "TPU v3", "TPU v5 lite", "TPU v5e")
CIFAR10 = ("--config=configs/vit_cifar10.py",)  # as main.py takes it
RESUMED = 600  # steps of the run that is stopped
# Networks whose steps are timed, with their batches, in this type; chips of 16 GiB take a quarter.
STEPS, DTYPE = (("vit_s16", 256), ("vit_b16", 256), ("vit_l16", 128)), "bfloat16"


class Part(NamedTuple):
    """A piece of the hour: its limit in seconds, and what it measures, small or not."""

    seconds: int
    run: Callable[[bool], dict[str, Any]]


@contextlib.contextmanager
def _runs(small: bool) -> Iterator[Path]:
    """Yield where a part's runs lie: where the next call finds them, or, small, nowhere after."""
    if not small:
        RUNS.mkdir(parents=True, exist_ok=True)
        yield RUNS
        return
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)


def parity(small: bool) -> dict[str, Any]:
    """Compare every family on this device with the CPU; raises RuntimeError if any is off."""
    names = FAMILIES[:1] if small else FAMILIES
    found = {name: _parity_of(name, small) for name in names}
    off = [
        f"{name} {what} {value:.1e}"
        for name, each in found.items()
        for what, value in each.items()
        if value > (GRADIENT if what in ("gradient", "step") else FORWARD)
    ]
    if off:
        raise RuntimeError(f"off by more than allowed: {', '.join(off)}; all: {json.dumps(found)}")
    return found


def parity_works(module: Any) -> dict[str, Callable[..., Any]]:
    """Return what is compared of a network: functions of (parameters, other variables, image)."""
    import jax

    def forward(params: Any, state: Any, image: Any) -> Any:
        out: Any = module.apply({"params": params, **state}, image, train=False)
        return out.logits

    def loss(params: Any, state: Any, image: Any) -> Any:
        return jax.nn.log_softmax(forward(params, state, image))[:, 0].mean()

    def step(params: Any, state: Any, image: Any) -> Any:
        grads = jax.grad(loss)(params, state, image)
        stepped = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return forward(stepped, state, image)

    return {"forward": forward, "gradient": jax.grad(loss), "step": step}


def _parity_of(name: str, small: bool) -> dict[str, float]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from vit_jax import models

    sizes = {"image_size": (32, 32), "depth": 2} if small else {}
    cfg = models.variant(name, num_classes=CLASSES, **sizes)
    module = models.create(cfg)

    def waved(x: Any) -> Any:
        # A head of zeros would hide whatever lies before it.
        return x + 0.02 * jnp.sin(jnp.arange(x.size)).reshape(x.shape)

    host, device = jax.devices("cpu")[0], jax.devices()[0]
    with jax.default_device(host), jax.default_matmul_precision(PRECISION):
        params, state = jax.jit(lambda key: models.init(module, cfg, key))(jax.random.key(0))
        params = jax.tree.map(waved, params)
    rng = np.random.default_rng(0)
    image = rng.standard_normal((IMAGES, *models.input_shape(cfg))).astype(np.float32)
    works = parity_works(module)
    found: dict[str, float] = {}
    for what, work in works.items():
        each = []
        for where in (host, device):
            args = jax.device_put((params, state, image), where)
            with jax.default_device(where), jax.default_matmul_precision(PRECISION):
                each.append(jax.device_get(jax.jit(work)(*args)))
        found[what] = _apart(*each)
    args = jax.device_put((params, state, image), device)
    platform = {"gpu": "cuda"}.get(str(device.platform), str(device.platform))
    forward = jax.jit(works["forward"])
    exported = jax.export.export(forward, platforms=[platform])(*args)
    again = jax.export.deserialize(exported.serialize()).call(*args)
    found["export"] = _apart(*jax.device_get((forward(*args), again)))
    return found


def _apart(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two trees, relative to the largest value of the first."""
    import jax
    import numpy as np

    pairs = list(zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
    largest = max(float(np.abs(a).max()) for a, _ in pairs)
    return max(float(np.abs(a - b).max()) for a, b in pairs) / max(largest, 1e-30)


def resume(small: bool) -> dict[str, Any]:
    """Stop a run of the digits by SIGTERM, continue it, and compare the bits of its parameters."""
    with _runs(small) as runs:
        return _resume(60 if small else RESUMED, runs / "resume_whole", runs / "resume_cut")


def resume_flags(steps: int) -> list[str]:
    """Return the run that is stopped, as main.py takes it."""
    flags = ["--config=configs/vit_mu_digits.py", f"--config.duration={steps} steps"]
    return [*flags, "--config.optim.warmup=5%", "--config.log.every=5 steps"]


def _resume(steps: int, whole: Path, cut: Path) -> dict[str, Any]:
    # Without it a GPU's sums come in another order each time (docs/reliability.md).
    xla = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true"
    env = {**os.environ, "XLA_FLAGS": xla}
    for place in (whole, cut):
        shutil.rmtree(place, ignore_errors=True)
    command = [sys.executable, "main.py", *resume_flags(steps)]
    subprocess.run([*command, f"--workdir={whole}"], check=True, cwd=ROOT, env=env)
    running = subprocess.Popen([*command, f"--workdir={cut}"], cwd=ROOT, env=env)
    while running.poll() is None and _last_step(cut) < steps // 3:
        time.sleep(0.05)
    stopped = running.poll() is None
    running.send_signal(signal.SIGTERM)
    running.wait()
    at = _last_step(cut)
    subprocess.run([*command, f"--workdir={cut}"], check=True, cwd=ROOT, env=env)
    digests = [_digest(place) for place in (whole, cut)]
    if not stopped or digests[0] != digests[1]:
        raise RuntimeError(f"stopped: {stopped}, at step {at}; digests {digests}")
    return {"steps": steps, "stopped_at": at, "digest": digests[0]}


def _last_step(workdir: Path) -> int:
    return max((row["step"] for row in _rows(workdir)), default=0)


def _rows(workdir: Path) -> list[dict[str, Any]]:
    from vit_jax.train.report.writers import read_jsonl

    return read_jsonl(workdir / "metrics.jsonl")


def _digest(workdir: Path) -> str:
    """Return a digest of the bits of a run's last state: its parameters, moments, counters."""
    from vit_jax.checkpoints import reader

    leaves = reader.find(workdir, reader.LATEST).manifest.leaves
    return hashlib.sha256(json.dumps(leaves, sort_keys=True).encode()).hexdigest()[:16]


def steps_of(device: str) -> list[tuple[str, int]]:
    """Return the networks whose steps are timed on a device, with batches that fit there."""
    cut = 4 if device.startswith(SMALL_CHIPS) else 1
    return [(variant, batch // cut) for variant, batch in STEPS]


def mfu(small: bool) -> dict[str, Any]:
    """Measure training steps of ViT S, B and L; their rows are in `record.RESULTS` as well."""
    from benchmarks import train_step

    found: dict[str, Any] = {}
    with _runs(small) as runs:
        out = runs if small else record.RESULTS
        for variant, batch in [("vit_ti16", 2)] if small else steps_of(record.device()):
            args = ["--variant", variant, "--batch", str(batch), "--dtype", DTYPE]
            brief = ["--rounds", "1", "--seconds", "0.1", "--peers"] if small else []
            train_step.main([*args, "--out", str(out), *brief])
            rows = json.loads(record.file_of(out, record.device()).read_text())["rows"]
            work = f"{variant} train batch={batch} {DTYPE}"
            found[variant] = [row for row in rows if row["work"] == work]
    return found


def kernels() -> list[Any]:
    """Return the attention kernels of the hardware that is traced for; `auto` is on any."""
    from vit_jax.models.layers.attention import AttentionImpl, has_kernel

    return [impl for impl in AttentionImpl if has_kernel(impl)]


def attention_gradient(impl: Any) -> Callable[..., Any]:
    """Return what is timed of a kernel: the gradient by all of (q, k, v)."""
    import jax
    import jax.numpy as jnp

    from vit_jax.models.layers.attention import attend

    def loss(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, impl=impl).astype(jnp.float32).sum()

    return jax.grad(loss, (0, 1, 2))


def attention(small: bool) -> dict[str, Any]:
    """Time each kernel that the device has, and say of which shapes `auto` is not the fastest."""
    import jax

    shapes = [(2, 2, 17, 64)] if small else [*SHAPES, LONG]
    found: dict[str, Any] = {}
    slower = []
    for shape in shapes:
        q, k, v = (jax.random.normal(jax.random.key(i), shape, DTYPE) for i in range(3))
        seconds = {
            impl.value: _seconds(jax.jit(attention_gradient(impl)), q, k, v) for impl in kernels()
        }
        found["x".join(map(str, shape))] = seconds
        best = min(seconds, key=lambda name: seconds[name])
        if not small and seconds["auto"] > 1.1 * seconds[best]:
            slower.append(f"{shape}: auto {seconds['auto']:.2e} s, {best} {seconds[best]:.2e} s")
    return {"seconds": found, "auto_is_slower": slower}


def _seconds(work: Callable[..., Any], *args: Any) -> float:
    """Return the seconds of one call, the least of five rounds of about a fifth of a second."""
    import jax

    jax.block_until_ready(work(*args))
    start, best, count = time.perf_counter(), float("inf"), 1
    while time.perf_counter() - start < 1:
        began = time.perf_counter()
        for _ in range(count):
            out = work(*args)
        jax.block_until_ready(out)
        took = (time.perf_counter() - began) / count
        best, count = min(best, took), max(1, int(0.2 / max(took, 1e-6)))
    return best


def cifar10(small: bool) -> dict[str, Any]:
    """Train docs/cifar10.md's run to its end; raises RuntimeError if the time is over before."""
    flags = [*CIFAR10]
    if small:
        flags = ["--config=configs/vit_mu_digits.py", "--config.duration=4 steps"]
        flags.append("--config.optim.warmup=5%")
    with _runs(small) as runs:
        return _trained(flags, runs / "cifar10")


def _trained(flags: Sequence[str], workdir: Path) -> dict[str, Any]:
    limit = PARTS["cifar10"].seconds - 60  # to save, and to report
    began = time.monotonic()
    command = [sys.executable, "main.py", *flags, f"--workdir={workdir}"]
    running = subprocess.Popen(command, cwd=ROOT)
    try:
        running.wait(limit)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGTERM)  # saves; the same command continues
        running.wait()
        what = f"its time was over at step {_last_step(workdir)}"
        raise RuntimeError(f"{what}; the same command continues") from None
    if running.returncode:
        raise RuntimeError(f"main.py {' '.join(flags)} ended with status {running.returncode}")
    step = _last_step(workdir)
    last = [row for row in _rows(workdir) if row["step"] == step]  # one of each evaluation
    tested = {key: value for row in last for key, value in row.items() if "/top" in key}
    return {"step": step, **tested, "seconds": time.monotonic() - began}


PARTS = {
    "parity": Part(480, parity),
    "resume": Part(240, resume),
    "attention": Part(180, attention),
    "mfu": Part(600, mfu),
    "cifar10": Part(1200, cifar10),
}


def hour(
    names: Sequence[str], out: Path, *, small: bool = False, seconds: float | None = None
) -> dict[str, Any]:
    """Run parts that have not ended well at this commit; return what the file holds then.

    `seconds` is a limit of each instead of its own.
    """
    device, head = record.device(), _head()
    file = record.file_of(out, f"first gpu {device}")
    content = json.loads(file.read_text()) if file.exists() else {}
    if content.get("head") != head:
        content = {"device": device, "head": head, "parts": {}}
    for name in names:
        if content["parts"].get(name, {}).get("status") == "passed":
            print(f"{name}: passed before, at this commit")
            continue
        content["parts"][name] = _run(name, small, seconds or PARTS[name].seconds)
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=1) + "\n")
        print(f"{name}: {content['parts'][name]['status']}; written to {file}", flush=True)
    return content


def _run(name: str, small: bool, seconds: float) -> dict[str, Any]:
    """Run a part in a process of its own, which ends with its limit and all that it started."""
    command = [sys.executable, "-m", "benchmarks.first_gpu", "--part", name]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, *(["--small"] if small else [])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"status": "ran out of time", "seconds": round(time.monotonic() - began, 1)}
    took = round(time.monotonic() - began, 1)
    last = (told.strip().splitlines() or [""])[-1]
    if process.returncode:
        return {"status": "failed", "seconds": took, "why": last[-2000:]}
    return {"status": "passed", "seconds": took, "found": json.loads(last)}


def _head() -> str:
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_gpu")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--small", action="store_true", help="small models, on any machine")
    parser.add_argument("--out", type=Path, help="by default benchmarks/results; small, runs/")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.part is None:
        out = args.out or (RUNS if args.small else record.RESULTS)
        found = hour(args.only, out, small=args.small)
        failed = [name for name in args.only if found["parts"][name]["status"] != "passed"]
        if failed:
            raise SystemExit(f"not passed: {', '.join(failed)}")
        return
    from vit_jax.process import startup

    if args.part in ("parity", "attention"):
        startup.configure()
    try:
        found = PARTS[args.part].run(args.small)
    except Exception as error:  # the parent reads the last line
        print(f"{type(error).__name__}: {error}".replace("\n", " "))
        raise SystemExit(1) from error
    print(json.dumps(found))


if __name__ == "__main__":
    main()
