# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The pi0 model and everything between an Observation and a chunk of actions; imports no ROS.

Names are imported when they are first used, so that importing this package stays light.
"""

from __future__ import annotations

import importlib

_HOMES = {
    'Guidance': 'guidance',
    'Pi0Config': 'config',
    'Pi0Model': 'model',
    'Pi0Policy': 'policy',
    'from_parameters': 'policy',
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    """Import a public name from its module at first use."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f'{__name__}.{_HOMES[name]}'), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__))
