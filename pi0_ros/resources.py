# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Where the package's data files (config, launch, urdf) are, in a checkout or an installation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pi0_ros.errors import Pi0RosError


def share_roots() -> list[Path]:
    """
    Return the directories that may hold the data files, the likeliest first.

    A checkout (also an editable or symlinked installation) keeps them beside the package; colcon
    and pip both install them below ``share/pi0_ros`` of a prefix.
    """
    prefixes = [Path(p) for p in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if p]
    prefixes += list(Path(__file__).resolve().parents)[1:7] + [Path(sys.prefix)]
    source = Path(__file__).resolve().parents[1]
    roots = [source] if (source / 'package.xml').is_file() else []
    return roots + [prefix / 'share' / 'pi0_ros' for prefix in prefixes]


def share_path(relative: str) -> Path:
    """
    Return the path of an installed data file or folder.

    :param relative: below the share folder, such as ``config/robots/aloha.yaml``.
    :raises Pi0RosError: when no root holds it; the message lists where it was looked for.
    """
    roots = share_roots()
    for root in roots:
        if (root / relative).exists():
            return root / relative
    looked = ', '.join(str(root) for root in roots if root.is_dir()) or 'no share folder at all'
    raise Pi0RosError(
        f"data file '{relative}' is not installed (looked in: {looked}); "
        'install the package with pip or colcon, or source its setup file'
    )
