# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Keep glibc from handing activations back to the system between the layers of every call."""

from __future__ import annotations

import ctypes
import functools

# From glibc's malloc.h. Blocks below the first limit come from the heap (32 MiB is the most that
# glibc accepts), and up to the second limit of free heap is kept for the next layer.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_THRESHOLD = 32 * 1024 * 1024
TRIM_THRESHOLD = 512 * 1024 * 1024


@functools.cache
def keep_freed_memory() -> bool:
    """
    Ask the C library to keep freed blocks; done once a process.

    By default a freed activation of some MB goes back to the system and the next one costs a page
    fault for each 4 KiB: about a tenth of the time of a call on the CPU.

    :return: False where the C library is another one; nothing depends on it but speed
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD) and mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD)
    )
