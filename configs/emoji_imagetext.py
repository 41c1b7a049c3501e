# SPDX-License-Identifier: Apache-2.0
r"""A small pair of towers on drawings of emoji by several artists; another's are left to be named.

    python -m benchmarks.drawings runs/emoji/drawings
    vit_jax train-tokenizer csv:runs/emoji/drawings/captions-twemoji.csv --size=1000 --context=12 \
        --out=runs/emoji/words.json
    python main.py --config=configs/emoji_imagetext.py --workdir=runs/emoji/run

`make emoji` does this and more. The first command needs npm, and `pip install cairosvg`.
Hardware: 2 CPU cores; images of 32 pixels, 0.8 million parameters.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import image_text


def get_config() -> Config:
    return image_text.emoji()
