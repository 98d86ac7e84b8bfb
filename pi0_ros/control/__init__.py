# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""From observations to setpoints on time: chunks, stitching, inference thread, executor."""

from pi0_ros.control.chunk import ActionChunk, ChunkError, chunk_label, parse_chunk_label
from pi0_ros.control.executor import ChunkExecutor, Setpoint
from pi0_ros.control.inference import Failure, InferenceThread, Job, noise_for
from pi0_ros.control.stitching import (
    STITCHERS,
    Blend,
    DelayEstimate,
    RealTimeChunking,
    Switch,
    make_stitcher,
)

__all__ = [
    'ActionChunk', 'Blend', 'ChunkError', 'ChunkExecutor', 'DelayEstimate', 'Failure',
    'InferenceThread', 'Job', 'RealTimeChunking', 'STITCHERS', 'Setpoint', 'Switch',
    'chunk_label', 'make_stitcher', 'noise_for', 'parse_chunk_label',
]  # fmt: skip
