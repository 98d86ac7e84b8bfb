# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Pictures varied for training: another light, a slightly shifted view; never mirrored.

A mirrored picture would show the left arm's work to the right arm. Strengths are those of openpi's
training (``src/openpi/models/model.py``): 95 % crop for fixed cameras, none for wrist cameras.
"""

from __future__ import annotations

import numpy as np

CROP = 0.95
"""Side of the window that is kept, as a share of the picture's."""

BRIGHTNESS, CONTRAST, SATURATION = 0.3, 0.4, 0.5
"""Largest relative change of each."""

GREY = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue in brightness (ITU-R BT.601)."""


def augment(rgb: np.ndarray, rng: np.random.Generator, crop: bool = True) -> np.ndarray:
    """
    Return a varied picture of the same size.

    :param rgb: uint8 [H, W, 3].
    :param crop: also shift and enlarge; not for cameras on a wrist, whose view of the gripper
        says how far it is from things.
    :return: uint8 [H, W, 3].
    """
    if crop:
        rgb = shifted(rgb, rng)
    pixels = rgb.astype(np.float64)
    pixels *= rng.uniform(1 - BRIGHTNESS, 1 + BRIGHTNESS)
    mean = (pixels @ GREY).mean()
    pixels = mean + (pixels - mean) * rng.uniform(1 - CONTRAST, 1 + CONTRAST)
    grey = (pixels @ GREY)[..., None]
    pixels = grey + (pixels - grey) * rng.uniform(1 - SATURATION, 1 + SATURATION)
    return np.clip(np.round(pixels), 0, 255).astype(np.uint8)


def shifted(rgb: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a random window of :data:`CROP` of the picture, enlarged to its size."""
    from PIL import Image

    height, width = rgb.shape[:2]
    rows, columns = round(height * CROP), round(width * CROP)
    top = int(rng.integers(height - rows + 1))
    left = int(rng.integers(width - columns + 1))
    window = Image.fromarray(rgb[top : top + rows, left : left + columns])
    return np.asarray(window.resize((width, height), Image.Resampling.BILINEAR))
