# SPDX-License-Identifier: Apache-2.0
"""The options of `vit_jax probe`."""

import dataclasses
from pathlib import Path

from vit_jax.cli.parsing.model_options import InputOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.inference import probing


@dataclasses.dataclass(kw_only=True)
class Probe(InputOptions):
    """Fits simple classifiers to frozen features, what the head sees, and tests them.

    They learn from a labelled split and are tested on another. With --features=DIR it writes the
    features; of images that are named, which need no labels, it does only that.

      vit_jax probe --from=runs/vit_mu_digits --pixels
      vit_jax probe --from=npz:ViT-B_16.npz --model=vit_b16 --model.num_classes=21843 \\
          --dataset=folder:flowers --test_split=val --methods=fewshot
      vit_jax probe --from=runs/vit_mu_digits --features=features photos/*.jpg
      vit_jax probe --from=runs/vit_mu_digits --features=features --layers=0,1,-1 --norm
    """

    images: tuple[str, ...] = flag((), "files, folders, patterns, or - for stdin", "[IMAGE ...]")
    dataset: str = flag(
        "",
        "as data.name takes it, or folder:DIR; by default the run's own. masks:DIR of images and "
        "masks measures how well its patches segment them, by patch_knn and linear_head",
    )
    data_dir: str = flag("", "where TFDS datasets lie; by default the run's", "DIR")
    train_split: str = flag("train", "what the probes learn from, such as train[:10%]", "SPLIT")
    test_split: str = flag("test", "what they are tested on", "SPLIT")
    methods: tuple[str, ...] = flag(probing.METHODS, "the probes, or none with --features")
    shots: tuple[int, ...] = flag((1, 5, 10, 25), "fewshot: images a class", least=1)
    seeds: int = flag(3, "fewshot: how often they are drawn, from --seed on", least=1)
    l2: tuple[float, ...] = flag((1024.0,), "fewshot: regularisation, each tried alone", above=0)
    k: tuple[int, ...] = flag(
        (),
        "knn: neighbours; default: 10,20,100,200 as images allow; patch_knn: 30",
        least=1,
    )
    temperature: float = flag(0.07, "knn, patch_knn: of the votes", above=0)
    steps: int = flag(1000, "linear_head: updates", least=1)
    lr: float = flag(1e-3, "linear_head: the highest learning rate", above=0)
    seed: int = flag(0, "of what is drawn at random", least=0)
    pixels: bool = flag(False, "probe the pixels as well, to compare")
    batch_size: int = flag(256, "over all devices", least=1)
    features: Path | None = flag(
        None, "write features_train.npy, labels_train.npy, names_train.txt, and of test", "DIR"
    )
    layers: tuple[int, ...] = flag(
        (), "also features of these layers, from 0, negative ones from the end: layer2_train.npy"
    )
    norm: bool = flag(False, "layers: normalised as the last one is")
    tokens: bool = flag(False, "layers: of each patch, [N, P, Q, D], to write; not one an image")
    out: Path | None = flag(None, "write the results", "FILE.json")
    plot: Path | None = flag(
        None, "draw fewshot's accuracy against the shots; of masks:DIR masks", "FILE.png"
    )
    force: bool = flag(False, "replace what is there")
