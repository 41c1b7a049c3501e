# SPDX-License-Identifier: Apache-2.0
r"""A small pair of towers from scratch on your own images and their captions.

    vit_jax train-tokenizer csv:captions.csv --size=2000 --out=words.json
    python main.py --config=configs/captions_small.py --workdir=DIR \
        --config.data.name=csv:captions.csv --config.objective.tokenizer=words.json

captions.csv has the columns path,caption[,split]; without splits they are drawn, 80, 10 and 10 %.
Few captions give fewer tokens than 2,000: --config.objective.text.vocab_size takes their number,
which the first command prints.
Hardware: 2 CPU cores; images of 64 pixels, 0.9 million parameters.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import image_text


def get_config() -> Config:
    return image_text.small()
