# SPDX-License-Identifier: Apache-2.0
"""One file, one run: `python main.py --config=configs/FILE.py --workdir=DIR`."""
