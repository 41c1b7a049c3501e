# SPDX-License-Identifier: Apache-2.0
"""`vit_jax retrieval --from=RUN`: how often captions find their images, and images theirs."""

import dataclasses
from pathlib import Path

from vit_jax.cli.parsing import model_options, options
from vit_jax.cli.parsing.model_options import InputOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.cli.texts import zero_shot
from vit_jax.cost.tables import align
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.evals import RetrievalEval
from vit_jax.inference import evaluate, image_text
from vit_jax.inference.trained import Trained, title
from vit_jax.process import startup


@dataclasses.dataclass(kw_only=True)
class RetrievalOptions(InputOptions):
    """Measures how often an image's captions are among its nearest texts, and the other way.

    The split needs captions; all of an image count. Equal similarities count as guessing would.

      vit_jax retrieval --from=runs/clip
      vit_jax retrieval --from=hub:google/siglip-base-patch16-224 --dataset=coco_captions \\
          --split=val --k=1,5,10
    """

    dataset: str = flag("", "as data.name takes it; by default the run's own")
    split: str = flag("", "by default the run's last evaluation's; of another dataset, test")
    data_dir: str = flag("", "where TFDS datasets lie; by default the run's", "DIR")
    k: tuple[int, ...] = flag((1, 5, 10), "so many results count", least=1)
    tokenizer: str = model_options.tokenizer()
    batch_size: int = flag(0, "over all devices; 0: the run's", least=0)
    mesh: str = flag("", "--mesh.data, .fsdp, .tensor: devices, as in training", ".data=N")
    out: Path | None = flag(None, "write the results", "FILE.json")
    force: bool = flag(False, "replace a FILE that is there")


def retrieval(given: RetrievalOptions, found: Trained, mesh: MeshConfig) -> None:
    """Measure a split, print and write the recalls."""
    startup.join_cluster()
    zero_shot.check_out(given.out, force=given.force)
    cfg, reading, source = evaluate.open_split(
        found, RetrievalEval, **zero_shot.which(given), own_transform=not given.transform
    )
    cfg.k = given.k
    trained, pair = image_text.read(found)
    measured = image_text.measure(trained, pair, cfg, reading, source, sharding.make_mesh(mesh))
    zero_shot.say(f"{title(trained)}\n{source.name}: {measured['num_examples']:,} images\n")
    header = ["of the first", *map(str, given.k)]
    ways = {"image_to_text": "images find a text", "text_to_image": "texts find their image"}
    rows = [
        [words, *(f"{measured[f'{name}_r{n}']:.2%}" for n in given.k)]
        for name, words in ways.items()
    ]
    zero_shot.say("\n".join(align(header, rows, right=range(1, len(header)))))
    zero_shot.write(given.out, measured)


main = options.verb(RetrievalOptions, retrieval, zero_shot.read)
