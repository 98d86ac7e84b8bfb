# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Decoding of image messages: every encoding, every fault; IMAGE entries of the field reports."""

from __future__ import annotations

import array
import io
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Picture

from pi0_ros.observation import ENCODINGS, ImageError, decode_image

H, W = 48, 64
Y, X = np.mgrid[:H, :W]
RGB = np.stack([X * 3 + 20, Y * 4 + 10, 255 - X * 2 - Y], axis=-1).astype(np.uint8)  # R != B


def message(data, encoding, height=H, width=W, step=None, big=0):
    data = np.ascontiguousarray(data)
    raw = data.view(np.uint8).reshape(-1)
    step = len(raw) // height if step is None else step
    return SimpleNamespace(
        height=height, width=width, encoding=encoding, is_bigendian=big, step=step,
        data=array.array('B', raw.tobytes()),
    )  # fmt: skip


def compressed(image, kind='JPEG', label='jpeg', **options):
    sink = io.BytesIO()
    picture = image if isinstance(image, Picture.Image) else Picture.fromarray(image)
    picture.save(sink, kind, **options)
    return SimpleNamespace(format=label, data=array.array('B', sink.getvalue()))


def channels(encoding):
    alpha = np.full((H, W, 1), 255, np.uint8)
    return {
        'rgb8': RGB,
        'bgr8': RGB[..., ::-1],
        'rgba8': np.concatenate([RGB, alpha], -1),
        'bgra8': np.concatenate([RGB[..., ::-1], alpha], -1),
    }[encoding]


def yuv(rgb):
    """Return video-range BT.601 planes (uint8)."""
    r, g, b = (rgb[..., i].astype(float) for i in range(3))
    y = 16 + 65.481 / 255 * r + 128.553 / 255 * g + 24.966 / 255 * b
    u = 128 - 37.797 / 255 * r - 74.203 / 255 * g + 112.0 / 255 * b
    v = 128 + 112.0 / 255 * r - 93.786 / 255 * g - 18.214 / 255 * b
    return tuple(np.rint(p).astype(np.uint8) for p in (y, u, v))


@pytest.mark.parametrize('encoding', ['rgb8', 'bgr8', 'rgba8', 'bgra8'])
def test_b27_one_scene_in_four_orders_gives_one_picture(encoding):
    out = decode_image(message(channels(encoding), encoding))
    assert out.dtype == np.uint8 and out.flags.c_contiguous
    np.testing.assert_array_equal(out, RGB)


@pytest.mark.parametrize('encoding', ['rgb8', 'bgra8'])
def test_b21_row_padding_is_not_seen(encoding):
    data = channels(encoding).reshape(H, -1)
    pad = np.full((H, 16), 255, np.uint8)
    out = decode_image(message(np.concatenate([data, pad], 1), encoding))
    assert out.flags.c_contiguous
    np.testing.assert_array_equal(out, RGB)


def test_b24_alpha_is_dropped():
    for encoding, pixel in (('rgba8', [10, 20, 30, 7]), ('bgra8', [30, 20, 10, 7])):
        out = decode_image(message(np.tile(np.uint8(pixel), (H, W, 1)), encoding))
        assert out.shape == (H, W, 3)
        assert (out == [10, 20, 30]).all()


def test_b22_wrong_step_or_too_few_bytes_are_refused_with_the_numbers():
    with pytest.raises(ImageError, match='depth'):
        decode_image(message(np.zeros(1280 * 4, np.uint8), '16UC1', 4, 1280, 1280))
    with pytest.raises(ImageError, match=r'step 100 .* 192'):
        decode_image(message(np.zeros(H * 100, np.uint8), 'rgb8', step=100))
    with pytest.raises(ImageError, match=r'640x480.*921600.*110592'):
        decode_image(message(np.zeros(110592, np.uint8), 'rgb8', 480, 640, 1920))


def test_b23_surplus_bytes_and_empty_images_are_refused():
    with pytest.raises(ImageError, match=r'326400.*337920'):
        decode_image(message(np.zeros(337920, np.uint8), 'bgra8', 240, 340, 1360))
    empty = SimpleNamespace(
        height=0, width=0, step=0, encoding='rgb8', is_bigendian=0, data=array.array('B')
    )
    with pytest.raises(ImageError, match='empty .*0x0'):
        decode_image(empty)


@pytest.mark.parametrize('encoding', ['bayerrg8', '8UC3', 'RGB8', '', '32FC1', 'h264'])
def test_b25_unknown_encodings_are_refused_with_the_accepted_ones(encoding):
    with pytest.raises(ImageError) as caught:
        decode_image(message(RGB, encoding))
    for accepted in ('rgb8', 'bayer_rggb8', 'yuv422_yuy2'):
        assert accepted in str(caught.value)
    assert f"'{encoding}'" in str(caught.value)


def test_b25_colourless_type_needs_an_override():
    np.testing.assert_array_equal(decode_image(message(RGB, '8UC3'), 'rgb8'), RGB)
    np.testing.assert_array_equal(decode_image(message(RGB, '8UC3'), 'bgr8'), RGB[..., ::-1])


def test_b26_label_is_trusted_unless_overridden():
    wrong = message(RGB, 'bgr8')
    np.testing.assert_array_equal(decode_image(wrong), RGB[..., ::-1])
    np.testing.assert_array_equal(decode_image(wrong, 'rgb8'), RGB)


def test_b28_depth_is_refused_and_mono16_scaled():
    depth = np.linspace(500, 4000, H * W).astype('<u2').reshape(H, W)
    with pytest.raises(ImageError, match='depth'):
        decode_image(message(depth, '16UC1'))
    ramp = np.linspace(0, 65535, H * W).astype('<u2').reshape(H, W)
    expected = np.rint(ramp / 257.0).astype(np.uint8)
    for big in (0, 1):
        data = ramp.astype('>u2') if big else ramp
        out = decode_image(message(data, 'mono16', big=big))
        np.testing.assert_array_equal(out[..., 0], expected)
        assert (out == out[..., :1]).all()


@pytest.mark.parametrize('big', [0, 1])
@pytest.mark.parametrize('encoding', ['rgb16', 'bgr16', 'rgba16', 'bgra16'])
def test_16_bit_colour_is_scaled_in_either_byte_order(encoding, big):
    wide = channels(encoding[:-2] + '8').astype(np.uint16) * 257
    out = decode_image(message(wide.astype('>u2' if big else '<u2'), encoding, big=big))
    np.testing.assert_array_equal(out, RGB)


@pytest.mark.parametrize(
    'label', ['jpeg', 'jpg', 'rgb8; jpeg compressed bgr8', 'bgr8; png compressed bgr8', '', 'x']
)
@pytest.mark.parametrize('kind', ['JPEG', 'PNG'])
def test_b29_payload_decides_not_the_format_text(label, kind):
    options = {'quality': 95, 'subsampling': 0} if kind == 'JPEG' else {}
    out = decode_image(compressed(RGB, kind, label, **options))
    assert np.abs(out.astype(int) - RGB).max() <= (0 if kind == 'PNG' else 12)


def test_b29_depth_in_a_png_is_refused():
    depth = Picture.fromarray(np.full((H, W), 900, np.uint16))
    for label in ('16UC1; compressedDepth png', '16UC1; png compressed '):
        with pytest.raises(ImageError, match='depth'):
            decode_image(compressed(depth, 'PNG', label))
    transported = compressed(depth, 'PNG', 'png')
    transported.data = array.array('B', bytes(12) + transported.data.tobytes())
    with pytest.raises(ImageError, match='depth'):
        decode_image(transported)


def test_b30_broken_payloads_are_refused():
    good = compressed(RGB).data.tobytes()
    noise = np.random.default_rng(0).bytes(500)
    for data in (b'', good[:100], good[: len(good) // 2], noise, good[:2]):
        with pytest.raises(ImageError):
            decode_image(SimpleNamespace(format='jpeg', data=array.array('B', data)))


def test_compressed_override_exchanges_channels_or_is_refused():
    np.testing.assert_array_equal(
        decode_image(compressed(RGB, 'PNG', 'png'), 'bgr8'), RGB[..., ::-1]
    )
    with pytest.raises(ImageError, match='cannot override'):
        decode_image(compressed(RGB, 'PNG', 'png'), 'mono16')


def test_png_variants_become_rgb():
    alpha = np.dstack([RGB, np.full((H, W), 3, np.uint8)])
    np.testing.assert_array_equal(decode_image(compressed(alpha, 'PNG', 'png')), RGB)
    grey = decode_image(compressed(RGB[..., 0], 'PNG', 'png'))
    np.testing.assert_array_equal(grey, np.repeat(RGB[..., :1], 3, -1))


def test_mono8_is_grey():
    out = decode_image(message(RGB[..., 0], 'mono8'))
    np.testing.assert_array_equal(out, np.repeat(RGB[..., :1], 3, -1))


def packed(encoding, colour):
    y, u, v = yuv(np.tile(np.uint8(colour), (H, W, 1)))
    if encoding in ('yuv422', 'uyvy'):
        return np.stack([np.where(X % 2, v, u), y], -1)
    if encoding in ('yuv422_yuy2', 'yuyv'):
        return np.stack([y, np.where(X % 2, v, u)], -1)
    first, second = (v, u) if encoding == 'nv21' else (u, v)
    chroma = np.stack([first, second], -1)
    if encoding == 'nv24':
        return np.concatenate([y, chroma.reshape(2 * H, W)])
    return np.concatenate([y, chroma[::2, ::2].reshape(H // 2, W)])


@pytest.mark.parametrize(
    'encoding', ['yuv422', 'uyvy', 'yuv422_yuy2', 'yuyv', 'nv12', 'nv21', 'nv24']
)
@pytest.mark.parametrize('colour', [(200, 30, 60), (20, 90, 220), (255, 255, 255), (0, 0, 0)])
def test_yuv_colours(encoding, colour):
    data = packed(encoding, colour)
    step = W * 2 if encoding[0] in 'yu' else W
    out = decode_image(message(data, encoding, step=step))
    assert out.shape == (H, W, 3)
    assert np.abs(out.astype(int) - colour).max() <= 3


def test_yuv_keeps_the_two_pixels_of_a_pair_in_order():
    y = np.tile(np.uint8([50, 200]), (H, W // 2))
    grey = np.full((H, W), 128, np.uint8)
    out = decode_image(message(np.stack([grey, y], -1), 'uyvy'))
    assert (out[:, 0] < 60).all() and (out[:, 1] > 200).all()
    for encoding, height, width in (('uyvy', 4, 3), ('nv12', 3, 4)):
        samples = {'uyvy': 2, 'nv12': 1}[encoding]
        rows = {'uyvy': 4, 'nv12': 4}[encoding]
        data = np.zeros((rows, width * samples), np.uint8)
        with pytest.raises(ImageError):
            decode_image(message(data, encoding, height, width, width * samples))


@pytest.mark.parametrize('bits', [8, 16])
@pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
def test_bayer_mosaic_gives_the_colours_back(pattern, bits):
    smooth = np.stack([X + 40, 200 - X, Y * 2 + 30], -1).astype(np.uint8)
    mosaic = np.empty((H, W), np.uint8)
    for i, colour in enumerate(pattern):
        cell = (slice(i // 2, None, 2), slice(i % 2, None, 2))
        mosaic[cell] = smooth[..., 'rgb'.index(colour)][cell]
    data = mosaic if bits == 8 else (mosaic.astype('<u2') * 257)
    out = decode_image(message(data, f'bayer_{pattern}{bits}'))
    inner = (slice(1, -1), slice(1, -1))
    assert np.abs(out[inner].astype(int) - smooth[inner]).max() <= 1
    assert np.abs(out.astype(int) - smooth).max() <= 3


def test_every_encoding_of_the_table_decodes_and_is_three_channels():
    for name, layout in ENCODINGS.items():
        item = np.dtype(layout.dtype).itemsize
        step = W * layout.samples * item
        data = np.zeros(step * int(H * layout.rows), np.uint8)
        assert decode_image(message(data, name, step=step)).shape == (H, W, 3), name


def test_b12_nothing_is_copied_where_nothing_is_converted():
    source = message(RGB, 'rgb8')
    out = decode_image(source)
    assert np.shares_memory(out, np.frombuffer(source.data, np.uint8))
    with pytest.raises(ValueError, match='read-only'):
        out[0, 0, 0] = 1


@pytest.mark.parametrize('kind', [bytes, bytearray, list, lambda d: np.frombuffer(d, np.uint8)])
def test_b83_any_buffer_will_do(kind):
    source = message(RGB, 'rgb8')
    source.data = kind(source.data.tobytes())
    np.testing.assert_array_equal(decode_image(source), RGB)


def test_other_messages_are_named():
    with pytest.raises(ImageError, match='SimpleNamespace'):
        decode_image(SimpleNamespace(data=b''))


@given(
    st.integers(0, 40), st.integers(0, 40), st.integers(0, 200), st.integers(0, 4000),
    st.sampled_from([*ENCODINGS, '16UC1', 'rubbish']),
)  # fmt: skip
def test_whatever_the_header_says_it_is_a_picture_or_a_sentence(height, width, step, size, name):
    source = message(np.zeros(size, np.uint8), name, max(height, 1), width, step)
    source.height = height
    try:
        out = decode_image(source)
    except ImageError as error:
        assert str(error)
    else:
        assert out.shape == (height, width, 3)


def test_live_messages_decode_alike():
    image = pytest.importorskip('sensor_msgs.msg')
    live = image.Image(height=H, width=W, encoding='bgr8', step=W * 3)
    live.data = array.array('B', np.ascontiguousarray(RGB[..., ::-1]).tobytes())
    np.testing.assert_array_equal(decode_image(live), RGB)
    live = image.CompressedImage(format='png')
    live.data = compressed(RGB, 'PNG').data
    np.testing.assert_array_equal(decode_image(live), RGB)


def test_recorded_messages_decode_alike():
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    header = store.types['std_msgs/msg/Header'](
        stamp=store.types['builtin_interfaces/msg/Time'](sec=1, nanosec=2), frame_id=''
    )
    kind = 'sensor_msgs/msg/Image'
    written = store.types[kind](
        header=header, height=H, width=W, encoding='rgb8', is_bigendian=0, step=W * 3,
        data=RGB.reshape(-1),
    )  # fmt: skip
    read = store.deserialize_cdr(store.serialize_cdr(written, kind), kind)
    np.testing.assert_array_equal(decode_image(read), RGB)
