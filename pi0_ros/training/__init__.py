# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
