# SPDX-License-Identifier: Apache-2.0
"""The verbs that write weights anew: export, convert, prune."""
