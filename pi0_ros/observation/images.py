# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Image messages to arrays: one table of encodings for live and recorded messages.

Works on anything with the fields of ``sensor_msgs/Image`` or ``sensor_msgs/CompressedImage``
(rclpy's or rosbags'); imports neither. cv_bridge's PyPI build breaks with NumPy 2 and ignores
``step``, and rosbags-image needs OpenCV and ignores ``step`` too, hence this module: NumPy for raw
images, Pillow for JPEG and PNG. Nothing is guessed: what is not in the table is refused.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pi0_ros.errors import Pi0RosError


class ImageError(Pi0RosError):
    """A picture that cannot be decoded, with the numbers that disagree."""


def decode_image(message, encoding: str | None = None) -> np.ndarray:
    """
    Return the picture of an Image or CompressedImage message.

    :param message: rclpy's or rosbags' message, or anything with the same fields.
    :param encoding: what the bytes really are, for drivers that label them wrongly or not at all
        (``8UC3``); compressed images know only ``rgb8`` and ``bgr8`` (channels exchanged).
    :return: uint8 [H, W, 3] RGB, contiguous; 16-bit colours are divided by 257 and rounded.
    :raises ImageError: when the encoding is unknown, carries no colour, or disagrees with the
        sizes; the picture is never cut or sheared into shape.
    """
    if hasattr(message, 'format'):
        return _decode_compressed(message, encoding)
    return _decode_raw(message, encoding)


# --- raw -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Encoding:
    channels: int  # samples a pixel in a row
    convert: Callable[[np.ndarray], np.ndarray]  # samples [H, W, channels] -> RGB [H, W, 3]
    wide: bool = False  # 16-bit samples
    rows: tuple[int, int] = (1, 1)  # rows in the data for a row of the picture: 3/2 for NV12
    even: tuple[int, int] = (1, 1)  # height and width must be multiples of these


def _reorder(*order: int):
    return lambda samples: samples[..., list(order)] if order != (0, 1, 2) else samples[..., :3]


def _grey(samples: np.ndarray) -> np.ndarray:
    return np.repeat(samples, 3, axis=-1)


def _rgb_from_yuv(y: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Convert limited-range BT.601, the convention of OpenCV and of V4L2 webcams."""
    y = (y.astype(np.float32) - 16.0) * np.float32(255.0 / 219.0)
    u, v = u.astype(np.float32) - 128.0, v.astype(np.float32) - 128.0
    rgb = np.stack([y + 1.596 * v, y - 0.391 * u - 0.813 * v, y + 2.018 * u], axis=-1)
    return np.clip(np.rint(rgb), 0, 255).astype(np.uint8)


def _yuv422(luma: int, first: int):
    """Two pixels share four bytes; ``luma`` and ``first`` chroma byte give their order."""

    def convert(samples: np.ndarray) -> np.ndarray:
        height, width = samples.shape[:2]
        pairs = samples.reshape(height, width // 2, 4)
        u = np.repeat(pairs[..., first], 2, axis=1)
        v = np.repeat(pairs[..., first + 2], 2, axis=1)
        return _rgb_from_yuv(samples[..., luma], u, v)

    return convert


def _semi_planar(first_is_u: bool, full_chroma: bool):
    """A plane of luma followed by a plane of interleaved chroma, halved unless ``full_chroma``."""

    def convert(samples: np.ndarray) -> np.ndarray:
        rows = samples[..., 0]
        height = len(rows) // 3 if full_chroma else 2 * len(rows) // 3
        width = rows.shape[1]
        y = rows[:height]
        if full_chroma:
            chroma = rows[height:].reshape(height, width, 2)
        else:
            chroma = rows[height:].reshape(height // 2, width // 2, 2)
            chroma = chroma.repeat(2, axis=0).repeat(2, axis=1)
        u, v = (chroma[..., i] for i in ((0, 1) if first_is_u else (1, 0)))
        return _rgb_from_yuv(y, u, v)

    return convert


def _bayer(pattern: str):
    """Interpolate the two missing colours of each pixel linearly from its neighbours."""

    def convert(samples: np.ndarray) -> np.ndarray:
        mosaic = samples[..., 0].astype(np.float32)
        height, width = mosaic.shape
        rgb = np.empty((height, width, 3), np.float32)
        for index, colour in enumerate('rgb'):
            known = np.zeros((height, width), np.float32)
            for place, name in enumerate(pattern):
                if name == colour:
                    known[place // 2 :: 2, place % 2 :: 2] = 1.0
            weight = _smooth(known)
            rgb[..., index] = np.where(known > 0, mosaic, _smooth(mosaic * known) / weight)
        return np.rint(rgb).astype(samples.dtype)

    return convert


def _smooth(plane: np.ndarray) -> np.ndarray:
    """Weigh 3x3 neighbours 1-2-1 in both directions; outside the picture counts as nothing."""
    padded = np.pad(plane, 1)
    rows = padded[:-2] + 2.0 * padded[1:-1] + padded[2:]
    return rows[:, :-2] + 2.0 * rows[:, 1:-1] + rows[:, 2:]


def _table() -> dict[str, _Encoding]:
    table = {
        'yuv422': _Encoding(2, _yuv422(luma=1, first=0), even=(1, 2)),
        'yuv422_yuy2': _Encoding(2, _yuv422(luma=0, first=1), even=(1, 2)),
        'nv12': _Encoding(1, _semi_planar(True, False), rows=(3, 2), even=(2, 2)),
        'nv21': _Encoding(1, _semi_planar(False, False), rows=(3, 2), even=(2, 2)),
        'nv24': _Encoding(1, _semi_planar(True, True), rows=(3, 1)),
    }
    table['uyvy'] = table['yuv422']
    table['yuyv'] = table['yuv422_yuy2']
    for bits, wide in (('8', False), ('16', True)):
        table['rgb' + bits] = _Encoding(3, _reorder(0, 1, 2), wide)
        table['bgr' + bits] = _Encoding(3, _reorder(2, 1, 0), wide)
        table['rgba' + bits] = _Encoding(4, _reorder(0, 1, 2), wide)
        table['bgra' + bits] = _Encoding(4, _reorder(2, 1, 0), wide)
        table['mono' + bits] = _Encoding(1, _grey, wide)
        for pattern in ('rggb', 'bggr', 'gbrg', 'grbg'):
            table[f'bayer_{pattern}{bits}'] = _Encoding(1, _bayer(pattern), wide, even=(2, 2))
    return table


ENCODINGS = _table()
"""Accepted values of ``Image.encoding``, as sensor_msgs/image_encodings.hpp spells them."""


def _decode_raw(message, override: str | None) -> np.ndarray:
    label = override or message.encoding
    encoding = ENCODINGS.get(label)
    if encoding is None:
        why = 'carries no colour order' if 'C' in label else 'is not known'
        raise ImageError(
            f"encoding '{label}' {why}; expected one of {', '.join(sorted(ENCODINGS))} "
            "(a camera's key 'encoding' in the robot's YAML overrides a wrong label)"
        )
    height, width, step = int(message.height), int(message.width), int(message.step)
    if height <= 0 or width <= 0:
        raise ImageError(f'{label} picture of {width}x{height} pixels is empty')
    if height % encoding.even[0] or width % encoding.even[1]:
        raise ImageError(f'{label} picture of {width}x{height} pixels has an odd side')
    sample = 2 if encoding.wide else 1
    row_bytes = width * encoding.channels * sample
    rows = height * encoding.rows[0] // encoding.rows[1]
    data = np.frombuffer(message.data, dtype=np.uint8)
    if step < row_bytes or data.size != rows * step:
        raise ImageError(
            f'{label} picture of {width}x{height} pixels needs rows of {row_bytes} bytes; '
            f'step is {step} and data has {data.size} bytes instead of {rows} x {step} = '
            f'{rows * step}'
        )
    samples = data.reshape(rows, step)[:, :row_bytes]
    if encoding.wide:
        big = bool(message.is_bigendian)
        samples = np.ascontiguousarray(samples).view('>u2' if big else '<u2')
        if big != (sys.byteorder == 'big'):
            samples = samples.astype(np.uint16)
    rgb = encoding.convert(samples.reshape(rows, width, encoding.channels))
    if encoding.wide:
        rgb = ((rgb.astype(np.uint32) + 128) // 257).astype(np.uint8)
    return np.ascontiguousarray(rgb)


# --- compressed ----------------------------------------------------------------------------

_MAGIC = {'JPEG': b'\xff\xd8\xff', 'PNG': b'\x89PNG\r\n\x1a\n'}
_COLOUR_MODES = ('RGB', 'RGBA', 'L', 'P', 'LA', 'CMYK', 'YCbCr', '1')


def _decode_compressed(message, override: str | None) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    label = message.format
    if 'compresseddepth' in label.lower() or label.strip().upper().startswith(('16UC1', '32FC1')):
        raise ImageError(f"format '{label}' is a depth picture; a camera needs colour")
    if override not in (None, 'rgb8', 'bgr8'):
        raise ImageError(f"encoding '{override}' cannot be that of a compressed picture")
    data = bytes(memoryview(message.data))
    kind = next((name for name, magic in _MAGIC.items() if data.startswith(magic)), None)
    if kind is None:
        raise ImageError(
            f"format '{label}': {len(data)} bytes that are neither JPEG nor PNG "
            f'(they begin with {data[:8].hex() or "nothing"})'
        )
    try:
        with Image.open(io.BytesIO(data), formats=[kind]) as picture:
            picture.load()
            if picture.mode not in _COLOUR_MODES:
                raise ImageError(
                    f"format '{label}' holds a {picture.mode} picture; a camera needs colour"
                )
            rgb = np.asarray(picture.convert('RGB'))
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError) as error:
        if isinstance(error, ImageError):
            raise
        what = f"format '{label}': damaged {kind} of {len(data)} bytes ({error})"
        raise ImageError(what) from None
    return np.ascontiguousarray(rgb[..., ::-1] if override == 'bgr8' else rgb)
