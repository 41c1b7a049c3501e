# SPDX-License-Identifier: Apache-2.0
"""`vit_jax VERB`, or `python -m vit_jax VERB`: training, and the tools around a run."""

import os
import sys

try:
    from vit_jax.process import launch, signals

    if __name__ == "__main__":
        launch.begin()
except KeyboardInterrupt:
    sys.exit(130)

from collections.abc import Sequence

from vit_jax import errors, version
from vit_jax.errors import UserError
from vit_jax.process import escapes, output

# verb: one line of help. Each is a module with a main(argv) -> exit status.
VERBS = {
    "train": "train the run that a config describes, or continue it",
    "predict": "the likeliest classes of images, by a run or a published file",
    "evaluate": "accuracy, calibration, confusion; at other sizes, on corrupted images",
    "search": "the images of a folder that a text describes, by a model of images and texts",
    "zero-shot": "accuracy by the names of the classes alone, and the words that fit images",
    "retrieval": "how often captions find their images, and images their captions",
    "probe": "how good a model's frozen features are, and features to disk",
    "configs": "the runs and sweeps that come with the package, a line each",
    "models": "the named variants with parameters and multiply-adds",
    "summary": "a config as it resolves, its model's parameter table and FLOPs",
    "visualize": "contact sheets of where a model looks, of its weights, of augmentation",
    "export": "a model for jax alone, ONNX Runtime, timm or the Hugging Face Hub",
    "convert": "write a run's weights, or published ones, as a file that timm loads",
    "prune": "a smaller network: a run without some of its heads and MLP units",
    "soup": "one model of several checkpoints: the average of their weights",
    "serve": "a page where one drops an image and sees its classes (needs the extra [serve])",
    "cache_teacher": "write a teacher's logits for a whole run, to distil from without running it",
    "sweep": "many runs of one question: plan, run, watch, fit laws to them",
    "submit": "a run or a sweep as a job of Slurm that continues by itself, or of Kubernetes",
    "doctor": "is this machine fit to train: install, devices, disk, memory, a run's data",
    "check-data": "every image of a dataset that is broken, blank, doubled or contradictory",
    "train-tokenizer": "a small tokenizer of one's own captions (needs the extra [text])",
    "prepare": "download and convert a TFDS dataset to ArrayRecord (needs the extra [tf])",
}


# folder of vit_jax.cli: the verbs whose modules are there; those of the others are in vit_jax.cli.
_FOLDERS = {
    "texts": ("search", "zero-shot", "retrieval", "train-tokenizer"),
    "weights": ("export", "convert", "prune", "soup"),
}


def module(verb: str) -> str:
    """Return the name of a verb's module."""
    folder = "".join(f"{name}." for name, verbs in _FOLDERS.items() if verb in verbs)
    return f"vit_jax.cli.{folder}{verb.replace('-', '_')}"


def written_help(verb: str, words: Sequence[str]) -> str:
    """Return what a verb's --help prints, from the file in which it is written down.

    The verbs themselves know it too (`options.help_text`), but most import jax, which takes a
    second. `python -m tests.meta.test_commands_page` writes the file, and a test compares them.
    """
    import json

    file = os.path.join(os.path.dirname(__file__), "cli", "help.json")
    with open(file, encoding="utf-8") as stream:
        helps = json.load(stream)
    return "\n".join(helps.get(f"{verb} {words[0]}", helps[verb]))


def main(argv: Sequence[str]) -> int:
    """Dispatch to a verb; prints the list of them without one."""
    if len(argv) < 2 or argv[1] in ("-h", "--help", "help"):
        lines = "\n".join(f"  {verb:16} {text}" for verb, text in VERBS.items())
        return output.show(f"usage: vit_jax VERB [--help] ...\n\n{lines}")
    if argv[1] in ("--version", "-V", "version"):
        print(f"vitjax {version.__version__}")
        return 0
    try:
        # A verb of two words may be written either way.
        name = {verb.replace("-", "_"): verb for verb in VERBS}.get(argv[1].replace("-", "_"))
        if name is None:
            raise errors.unknown("verb", argv[1], VERBS)
    except UserError as error:
        print(f"error: {escapes.terminal(error)}", file=sys.stderr)
        return error.status
    if not {"-h", "--help", "-help"}.isdisjoint(argv[2:]):
        return output.show(written_help(name, argv[2:]))
    verb = launch.load(module(name))
    try:
        if name != "train":  # before its first step it has nothing to clean up
            signals.interruptible()
        return verb([f"vit_jax {argv[1]}", *argv[2:]])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return signals.INTERRUPTED


def console() -> None:
    """Run the process's command line; exits with its status."""
    try:
        sys.exit(main(sys.argv))
    finally:
        signals.end_at_once()


if __name__ == "__main__":
    console()
