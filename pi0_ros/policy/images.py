# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Pictures of any size to the model's square input, as the checkpoint's trainer did it.

openpi resizes uint8 with Pillow (bilinear, which smooths when shrinking); LeRobot resizes floats
with torch (bilinear without smoothing). On sharp pictures they differ by up to 111 grey levels, so
the family of the checkpoint decides. Both keep the aspect and pad with black. transformers' own
processor is a third: bicubic with smoothing, grey at the right and bottom.
"""

from __future__ import annotations

import numpy as np

from pi0_ros.errors import Pi0RosError

RESIZES = ('pillow', 'torch', 'torch_left_top', 'transformers')
"""openpi; LeRobot from 0.4; LeRobot 0.1 to 0.3 (pads left and top alone); PI0ImageProcessor."""


def resize_with_pad(rgb: np.ndarray, size: int) -> np.ndarray:
    """
    Return openpi's reference resize: Pillow bilinear, aspect kept, centred on black.

    :param rgb: uint8 [H, W, 3].
    :return: uint8 [size, size, 3]; an odd row or column of padding goes to the bottom or right.
    :raises Pi0RosError: when the picture is not uint8 [H, W, 3].
    """
    from PIL import Image

    check_picture(rgb)
    height, width = rgb.shape[:2]
    if (height, width) == (size, size):
        return rgb
    new_height, new_width, top, left = _layout(height, width, size)
    picture = Image.fromarray(rgb).resize((new_width, new_height), Image.Resampling.BILINEAR)
    padded = np.zeros((size, size, 3), dtype=np.uint8)
    padded[top : top + new_height, left : left + new_width] = np.asarray(picture)
    return padded


def model_input(rgb: np.ndarray, size: int, resize: str = 'pillow'):
    """
    Return the model's input for one picture.

    :param rgb: uint8 [H, W, 3] RGB.
    :param resize: one of :data:`RESIZES`.
    :return: torch float32 [3, size, size] in [-1, 1]; padding is exactly -1 (black), with
        ``transformers`` exactly 0 (grey).
    :raises Pi0RosError: when the picture is not uint8 [H, W, 3].
    """
    import torch

    if resize == 'pillow':
        pixels = torch.from_numpy(np.array(resize_with_pad(rgb, size)))
        return (pixels.permute(2, 0, 1).float() / 255.0 * 2.0 - 1.0).contiguous()
    check_picture(rgb)
    if resize == 'transformers':
        return _transformers_input(torch.from_numpy(np.array(rgb)).permute(2, 0, 1), size)
    pixels = torch.from_numpy(np.array(rgb)).permute(2, 0, 1).float() / 255.0
    height, width = rgb.shape[:2]
    if (height, width) != (size, size):
        new_height, new_width, top, left = _layout(height, width, size)
        if resize == 'torch_left_top':
            top, left = size - new_height, size - new_width
        small = torch.nn.functional.interpolate(
            pixels[None], size=(new_height, new_width), mode='bilinear', align_corners=False
        )[0].clamp(0.0, 1.0)
        pixels = torch.zeros(3, size, size)
        pixels[:, top : top + new_height, left : left + new_width] = small
    return pixels * 2.0 - 1.0


def _transformers_input(pixels, size: int):
    """Return what transformers' PI0ImageProcessor makes of uint8 [3, H, W]; bytes in between."""
    import torch

    height, width = pixels.shape[1:]
    scale = min(size / height, size / width)
    new_height, new_width = max(1, int(height * scale)), max(1, int(width * scale))
    if (height, width) != (new_height, new_width):
        pixels = torch.nn.functional.interpolate(
            pixels[None], size=(new_height, new_width), mode='bicubic', align_corners=False,
            antialias=True,
        )[0]  # of bytes: torch rounds and clamps after each direction, as torchvision and Pillow
    padded = torch.zeros(3, size, size)
    padded[:, :new_height, :new_width] = (pixels / 255.0 - 0.5) / 0.5
    return padded


def check_picture(rgb) -> None:
    """
    Refuse what is no uint8 RGB picture; floats have two ranges in use and neither is guessed.

    :raises Pi0RosError: naming dtype and shape.
    """
    if not isinstance(rgb, np.ndarray) or rgb.dtype != np.uint8:
        kind = getattr(rgb, 'dtype', type(rgb).__name__)
        raise Pi0RosError(f'a picture is {kind}; the policy takes uint8 RGB, 0 to 255')
    if rgb.ndim != 3 or rgb.shape[2] != 3 or 0 in rgb.shape:
        raise Pi0RosError(f'a picture has shape {rgb.shape}; the policy takes [H, W, 3]')


def _layout(height: int, width: int, size: int) -> tuple[int, int, int, int]:
    """Return height, width, top and left of the picture inside of the square."""
    ratio = max(width / size, height / size)
    new_height, new_width = max(1, int(height / ratio)), max(1, int(width / ratio))
    return new_height, new_width, (size - new_height) // 2, (size - new_width) // 2
