# SPDX-License-Identifier: Apache-2.0
"""Many runs of one question: a list of points, a queue of workers, and what came of it."""
