# SPDX-License-Identifier: Apache-2.0
"""The parts of the documentation's site that are made from the code; mkdocs.yml has the rest."""
