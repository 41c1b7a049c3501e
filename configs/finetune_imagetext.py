# SPDX-License-Identifier: Apache-2.0
r"""A published CLIP or SigLIP, fine-tuned on your own images and their captions.

    python main.py --config=configs/finetune_imagetext.py:siglip2_b16 --workdir=DIR \
        --config.data.name=csv:captions.csv

captions.csv has the columns path,caption[,split]; without splits they are drawn, 80, 10 and 10 %.
tar:PATTERN, parquet:PATTERN and hf:NAME go too. Weights, tokenizer and preprocessing come from the
Hub, or a copy: --config.init.weights=hub:./FOLDER. An image tower that is to stay as it is:
--config.objective.lock=image.
Runs: clip_b32, clip_b16, clip_l14, openclip_b32, openclip_b16, siglip_b16, siglip2_b16,
siglip2_so400m14
Hardware: batch 512 of B/16: a GPU of 80 GB, or --config.model.remat=full on 40 GB.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import image_text

RUNS = tuple(image_text.WEIGHTS)


def get_config(pair: str = "siglip2_b16") -> Config:
    return image_text.fine_tune(pair)
