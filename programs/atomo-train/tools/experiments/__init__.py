# SPDX-License-Identifier: Apache-2.0
"""Experiments that run atomo-train: what they share, and those of programs/atomo-train/reproduce."""
