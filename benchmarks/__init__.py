# SPDX-License-Identifier: Apache-2.0
"""Measurements beside a peer; method and findings are in NOTES.md."""
