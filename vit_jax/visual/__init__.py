# SPDX-License-Identifier: Apache-2.0
"""All that is drawn: figures, heat maps, contact sheets, and what they show of a model or a run."""
