# SPDX-License-Identifier: Apache-2.0
"""The console script `vit_jax`, which refuses to run another package of that name.

google-research/vision_transformer is imported as `vit_jax` too. This module is installed as
`vitjax`, beside the package, so that it runs whichever of them Python finds.
"""

import sys


def main() -> None:
    """Run the command line; exits with its status."""
    try:
        import vit_jax

        if not hasattr(vit_jax, "__version__"):  # the other has none
            folder = next(iter(vit_jax.__path__), "nowhere")
            print(
                f"error: Python imports another package as vit_jax, from {folder}, such as that "
                "of google-research/vision_transformer; `pip uninstall vit_jax`, or take it off "
                "PYTHONPATH, then `pip install --force-reinstall --no-deps vitjax`",
                file=sys.stderr,
            )
            sys.exit(2)
        from vit_jax.process import launch

        launch.begin()
        from vit_jax.__main__ import console
    except KeyboardInterrupt:
        sys.exit(130)
    console()
