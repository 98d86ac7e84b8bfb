# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""From messages' contents to one aligned observation; imports neither ROS nor torch."""

from pi0_ros.observation.buffer import Observation, ObservationBuffer
from pi0_ros.observation.images import ENCODINGS, ImageError, decode_image

__all__ = ['ENCODINGS', 'ImageError', 'Observation', 'ObservationBuffer', 'decode_image']
