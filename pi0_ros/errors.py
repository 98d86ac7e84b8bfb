# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The one base class of every error that a user can cause and mend."""


class Pi0RosError(ValueError):
    """
    Names the thing, the value and the remedy in one sentence.

    The command line prints the sentence and exits with 2; a node logs it and refuses to configure.
    """
