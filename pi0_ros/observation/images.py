# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Image messages to arrays: uint8 [H, W, 3] RGB, from one table of encodings.

Called by the live nodes and by replay with messages of rclpy and of rosbags alike; a message is
whatever has the fields of ``sensor_msgs/Image`` or ``sensor_msgs/CompressedImage``. NumPy and
Pillow only: the distribution's cv_bridge is built for one NumPy line and ignores ``step``.

Rules, where ROS leaves a choice:

- the label is trusted, in lower case as ``sensor_msgs/image_encodings.hpp`` writes it; a camera
  that lies gets an override in the robot's YAML (``encoding: rgb8``);
- 16-bit colour and mono16 are scaled from 0..65535 to 0..255, never cut to one byte;
- YUV is BT.601 with video range (16..235), as V4L2 cameras and OpenCV take it;
- Bayer mosaics are interpolated bilinearly;
- alpha is dropped;
- depth (16UC1, 32FC1, compressedDepth) is refused;
- a compressed image is what its first bytes say (JPEG or PNG); ``format`` is free text and only
  consulted to refuse depth.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pi0_ros.errors import Pi0RosError

JPEG_MAGIC = b'\xff\xd8\xff'
PNG_MAGIC = b'\x89PNG\r\n\x1a\n'
DEPTH_HEADER_BYTES = 12  # compressed_depth_image_transport: a config header before the PNG
MAX_PIXELS = 64_000_000  # no camera of an arm is larger; a corrupt header can claim anything


class ImageError(Pi0RosError):
    """An image message that cannot be turned into RGB; says encoding, sizes and remedy."""


# --- converters: rows [H, W * channels] of the table's dtype -> uint8 [H, W, 3] ---------------


def _to_8_bit(samples: np.ndarray) -> np.ndarray:
    """Return uint8; uint16 is scaled so that 65535 becomes 255 (257 = 65535 / 255)."""
    if samples.dtype == np.uint8:
        return samples
    return ((samples.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _pick(*order: int) -> Callable[[np.ndarray, int], np.ndarray]:
    """Return a converter for interleaved channels: ``order`` names R, G, B in the pixel."""

    def convert(rows: np.ndarray, width: int) -> np.ndarray:
        pixels = rows.reshape(rows.shape[0], width, -1)
        if order == (0, 1, 2) and pixels.shape[2] == 3:
            return _to_8_bit(pixels)
        return _to_8_bit(np.stack([pixels[..., channel] for channel in order], axis=-1))

    return convert


def _bayer(pattern: str) -> Callable[[np.ndarray, int], np.ndarray]:
    """Return a bilinear converter for a 2x2 mosaic, read row by row ('rggb')."""

    def convert(rows: np.ndarray, width: int) -> np.ndarray:
        height = rows.shape[0]
        if height < 2 or width < 2:
            raise ImageError(f'a Bayer image of {width}x{height} is smaller than one 2x2 cell')
        mosaic = np.pad(_to_8_bit(rows), 1, mode='reflect').astype(np.uint16)
        centre = mosaic[1:-1, 1:-1]
        up, down = mosaic[:-2, 1:-1], mosaic[2:, 1:-1]
        left, right = mosaic[1:-1, :-2], mosaic[1:-1, 2:]
        vertical = (up + down + 1) >> 1
        horizontal = (left + right + 1) >> 1
        cross = (up + down + left + right + 2) >> 2
        diagonal = (
            mosaic[:-2, :-2] + mosaic[:-2, 2:] + mosaic[2:, :-2] + mosaic[2:, 2:] + 2
        ) >> 2
        rgb = np.empty((height, width, 3), dtype=np.uint8)
        for index, colour in enumerate(pattern):
            y, x = divmod(index, 2)
            cell = (slice(y, None, 2), slice(x, None, 2))
            if colour == 'g':
                beside = pattern[index ^ 1]  # the colour to the left and right of this green
                values = {'g': centre, beside: horizontal, 'rb'[beside == 'r']: vertical}
            else:
                values = {colour: centre, 'g': cross, 'rb'[colour == 'r']: diagonal}
            for channel, name in enumerate('rgb'):
                rgb[(*cell, channel)] = values[name][cell]
        return rgb

    return convert


def _yuv_to_rgb(y: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """
    Return RGB of video-range BT.601 planes of one shape.

    Factors of 2^20 as in ITU-R BT.601: 255/219, 255/224 * (1.402, 0.344136, 0.714136, 1.772).
    """
    luma = (np.maximum(y.astype(np.int32) - 16, 0)) * 1220945 + (1 << 19)
    u = u.astype(np.int32) - 128
    v = v.astype(np.int32) - 128
    rgb = np.empty((*y.shape, 3), dtype=np.uint8)
    rgb[..., 0] = np.clip((luma + 1673563 * v) >> 20, 0, 255)
    rgb[..., 1] = np.clip((luma - 852458 * v - 410796 * u) >> 20, 0, 255)
    rgb[..., 2] = np.clip((luma + 2115236 * u) >> 20, 0, 255)
    return rgb


def _yuv422(y: int, u: int, v: int) -> Callable[[np.ndarray, int], np.ndarray]:
    """Return a converter for packed 4:2:2; arguments are offsets in the 4 bytes of 2 pixels."""

    def convert(rows: np.ndarray, width: int) -> np.ndarray:
        if width % 2:
            raise ImageError(f'a 4:2:2 image needs an even width, not {width}')
        pairs = rows.reshape(rows.shape[0], width // 2, 4)
        return _yuv_to_rgb(
            pairs[..., y::2].reshape(rows.shape[0], width),
            np.repeat(pairs[..., u], 2, axis=1),
            np.repeat(pairs[..., v], 2, axis=1),
        )

    return convert


def _semi_planar(u: int, subsampled: bool) -> Callable[[np.ndarray, int], np.ndarray]:
    """Return a converter for a Y plane followed by interleaved chroma, U at offset ``u``."""

    def convert(rows: np.ndarray, width: int) -> np.ndarray:
        if subsampled:
            height = rows.shape[0] * 2 // 3
            if width % 2 or height % 2:
                raise ImageError(f'a 4:2:0 image needs even sides, not {width}x{height}')
            chroma = rows[height:].reshape(height // 2, width // 2, 2)
            chroma = chroma.repeat(2, axis=0).repeat(2, axis=1)
        else:
            height = rows.shape[0] // 3
            chroma = rows[height:].reshape(height, width, 2)
        return _yuv_to_rgb(rows[:height], chroma[..., u], chroma[..., 1 - u])

    return convert


@dataclass(frozen=True)
class Encoding:
    """
    How the bytes of one encoding lie in memory.

    A message has ``height * rows`` rows of ``width * samples`` samples of ``dtype``.
    """

    convert: Callable[[np.ndarray, int], np.ndarray]
    samples: int
    dtype: type = np.uint8
    rows: float = 1.0  # rows of data per row of the image: 1.5 with 4:2:0 chroma below


ENCODINGS: dict[str, Encoding] = {
    'rgb8': Encoding(_pick(0, 1, 2), 3),
    'bgr8': Encoding(_pick(2, 1, 0), 3),
    'rgba8': Encoding(_pick(0, 1, 2), 4),
    'bgra8': Encoding(_pick(2, 1, 0), 4),
    'mono8': Encoding(_pick(0, 0, 0), 1),
    'rgb16': Encoding(_pick(0, 1, 2), 3, np.uint16),
    'bgr16': Encoding(_pick(2, 1, 0), 3, np.uint16),
    'rgba16': Encoding(_pick(0, 1, 2), 4, np.uint16),
    'bgra16': Encoding(_pick(2, 1, 0), 4, np.uint16),
    'mono16': Encoding(_pick(0, 0, 0), 1, np.uint16),
    **{
        f'bayer_{pattern}{bits}': Encoding(_bayer(pattern), 1, dtype)
        for pattern in ('rggb', 'bggr', 'gbrg', 'grbg')
        for bits, dtype in ((8, np.uint8), (16, np.uint16))
    },
    'yuv422': Encoding(_yuv422(y=1, u=0, v=2), 2),  # ROS's name for UYVY
    'uyvy': Encoding(_yuv422(y=1, u=0, v=2), 2),
    'yuv422_yuy2': Encoding(_yuv422(y=0, u=1, v=3), 2),
    'yuyv': Encoding(_yuv422(y=0, u=1, v=3), 2),
    'nv12': Encoding(_semi_planar(u=0, subsampled=True), 1, rows=1.5),
    'nv21': Encoding(_semi_planar(u=1, subsampled=True), 1, rows=1.5),
    'nv24': Encoding(_semi_planar(u=0, subsampled=False), 1, rows=3.0),
}
"""Every accepted encoding of ``sensor_msgs/Image``; the only such table in the package."""

DEPTH_ENCODINGS = ('16UC1', '32FC1', '16SC1', '64FC1')

COMPRESSED_OVERRIDES = ('rgb8', 'bgr8')


def decode_image(message, encoding: str | None = None) -> np.ndarray:
    """
    Return the picture of an Image or CompressedImage message.

    The result shares memory with the message where no conversion is needed, so it is read-only.

    :param message: of rclpy or rosbags, or anything with the same fields.
    :param encoding: overrides the label of this camera's messages; for compressed images 'rgb8'
        or 'bgr8', the true order of the channels of the payload.
    :return: uint8 [H, W, 3], RGB, contiguous, read-only.
    :raises ImageError: for an unknown or colourless encoding, data that do not fit the header,
        an empty or broken payload, and depth.
    """
    if hasattr(message, 'encoding'):
        rgb = _decode_raw(message, message.encoding if encoding is None else encoding)
    elif hasattr(message, 'format'):
        rgb = _decode_compressed(message, encoding)
    else:
        raise ImageError(
            f'{type(message).__name__} is neither sensor_msgs/Image nor '
            'sensor_msgs/CompressedImage; check the topic of this camera'
        )
    rgb = np.ascontiguousarray(rgb).view()
    rgb.flags.writeable = False
    return rgb


def check_encoding(name: str) -> Encoding:
    """
    Return how ``name`` is laid out.

    :raises ImageError: when it is unknown, with the list of accepted names.
    """
    if name in ENCODINGS:
        return ENCODINGS[name]
    accepted = f'accepted are {", ".join(ENCODINGS)}'
    if name in DEPTH_ENCODINGS:
        raise ImageError(f"encoding '{name}' is depth, not colour; {accepted}")
    lower = name.lower()
    near = difflib.get_close_matches(lower, ENCODINGS, n=1, cutoff=0.75)
    if lower.startswith(('8uc', '8sc', '16uc', '16sc')):
        hint = f"encoding '{name}' does not say which colours its channels are; set 'encoding'"
    elif near:
        hint = f"encoding '{name}' is unknown, did you mean '{near[0]}'? If so set 'encoding'"
    else:
        hint = f"encoding '{name}' is unknown; set 'encoding'"
    raise ImageError(f"{hint} of this camera in the robot's YAML; {accepted}")


def _as_bytes(data) -> np.ndarray:
    """Return uint8 [n] over the same memory: array.array, bytes and ndarray are not copied."""
    try:
        return np.frombuffer(data, dtype=np.uint8)
    except (TypeError, ValueError, BufferError):  # a list, an empty buffer, a strided array
        return np.ascontiguousarray(np.asarray(data, dtype=np.uint8)).reshape(-1)


def _decode_raw(message, name: str) -> np.ndarray:
    layout = check_encoding(name)
    width, height, step = int(message.width), int(message.height), int(message.step)
    data = _as_bytes(message.data)
    if width <= 0 or height <= 0 or data.size == 0:
        raise ImageError(f'empty {name} image: {width}x{height} with {data.size} bytes')
    if width * height > MAX_PIXELS:
        raise ImageError(f'{name} image of {width}x{height} is beyond any camera; header corrupt?')
    item = np.dtype(layout.dtype).itemsize
    used = width * layout.samples * item
    rows = int(height * layout.rows)
    if step < used:
        raise ImageError(
            f'{name} {width}x{height}: step {step} is less than one row of {used} bytes'
        )
    if data.size != step * rows:
        raise ImageError(
            f'{name} {width}x{height} with step {step} needs {step * rows} bytes, the message has '
            f'{data.size}: {abs(data.size - step * rows)} '
            f'{"too many" if data.size > step * rows else "missing"}'
        )
    if rows != height * layout.rows:
        raise ImageError(f'{name} needs an even height, not {height}')
    samples = data.reshape(rows, step)[:, :used]
    if item > 1:
        order = '>' if getattr(message, 'is_bigendian', 0) else '<'
        samples = np.ascontiguousarray(samples).view(np.dtype(layout.dtype).newbyteorder(order))
        samples = samples.astype(layout.dtype, copy=False)
    return layout.convert(samples, width)


def _decode_compressed(message, override: str | None) -> np.ndarray:
    from PIL import Image  # here, so that raw cameras do not pay for it

    label = str(message.format)
    data = _as_bytes(message.data).tobytes()
    if not data:
        raise ImageError(f"empty compressed image (format '{label}')")
    if override is not None and override not in COMPRESSED_OVERRIDES:
        raise ImageError(
            f"encoding '{override}' cannot override a compressed image; use one of "
            f'{", ".join(COMPRESSED_OVERRIDES)}'
        )
    if 'compresseddepth' in label.lower() or data[DEPTH_HEADER_BYTES:].startswith(PNG_MAGIC):
        raise ImageError(f"compressed image of format '{label}' is depth, not colour")
    kind = 'JPEG' if data.startswith(JPEG_MAGIC) else 'PNG' if data.startswith(PNG_MAGIC) else ''
    if not kind:
        raise ImageError(
            f"compressed image (format '{label}') of {len(data)} bytes begins with "
            f'{data[:8].hex(" ")}, which is neither JPEG nor PNG'
        )
    try:
        with Image.open(io.BytesIO(data), formats=[kind]) as picture:
            if picture.mode in ('I', 'F') or picture.mode.startswith('I;'):
                raise ImageError(
                    f"compressed image (format '{label}') holds one 16-bit channel: depth, not "
                    'colour'
                )
            if picture.width * picture.height > MAX_PIXELS:
                raise ImageError(f'a {kind} of {picture.size} pixels is beyond any camera')
            rgb = np.asarray(picture.convert('RGB'))
    except ImageError:
        raise
    except Exception as error:  # Pillow raises whatever its plugins meet in broken data
        what = ' '.join(str(error).split())
        raise ImageError(f'{kind} of {len(data)} bytes is broken: {what}') from None
    return rgb[..., ::-1] if override == 'bgr8' else rgb
