# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The common base of the nodes: lifecycle, parameters, diagnostics, start and end of the process.

rclpy alone drops an exception of a transition without a word, and leaves a node half built. Here
every transition logs its error, teardown accepts whatever was built, and the process ends cleanly
on SIGINT and SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn

from pi0_ros.errors import Pi0RosError
from pi0_ros.nodes.clock import NodeClock

OK, WARN, ERROR, STALE = (
    DiagnosticStatus.OK,
    DiagnosticStatus.WARN,
    DiagnosticStatus.ERROR,
    DiagnosticStatus.STALE,
)
EXIT_START_FAILED = 2


@dataclass(frozen=True)
class Status:
    """One row of ``/diagnostics``: level (OK, WARN, ERROR, STALE), sentence, keys with units."""

    name: str
    level: bytes
    message: str
    values: Mapping[str, object] = field(default_factory=dict)


class EndRequested(Exception):
    """Raised by a hook that was told to end while it was at work; no fault of the node."""


class ManagedNode(LifecycleNode):
    """
    A lifecycle node whose subclass fills in four hooks.

    ``configure`` builds, ``activate`` starts, ``deactivate`` stops, ``cleanup`` undoes
    ``configure`` (also a half-finished one). A hook that raises makes its transition fail; the
    reason is logged and kept in ``failure``. Hooks run in the executor's thread.
    """

    def __init__(self, name: str, **kwargs):
        super().__init__(name, **kwargs)
        self.declare('autostart', True, 'configure and activate at start', read_only=True)
        self.clock = NodeClock(self)
        self.failure: str | None = None
        self.ending = threading.Event()
        """Set once the process shall end; hooks that take long look at it."""
        self._active = False
        self._configured = False
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self._diagnostics_timer = self.clock.create_wall_timer(1.0, self._publish_diagnostics)

    # -- hooks --------------------------------------------------------------------------------
    def configure(self) -> None:
        """Build publishers, subscriptions and workers; raise to refuse."""

    def activate(self) -> None:
        """Start to act."""

    def deactivate(self) -> None:
        """Stop to act; nothing is published afterwards."""

    def cleanup(self) -> None:
        """Undo ``configure``; accepts a half-built node."""

    def diagnostics(self) -> list[Status]:
        """Return the rows to publish, once a second."""
        return []

    # -- for subclasses -----------------------------------------------------------------------
    @property
    def active(self) -> bool:
        return self._active

    def declare(self, name: str, default, description: str, *, minimum=None, maximum=None,
                read_only: bool = False):  # fmt: skip
        """
        Declare one parameter with its description (unit included) and range; return its value.

        :raises Pi0RosError: when the value given at start has the wrong type or leaves the range.
        """
        descriptor = ParameterDescriptor(description=description, read_only=read_only)
        if minimum is not None or maximum is not None:
            low = minimum if minimum is not None else -(2**31)
            high = maximum if maximum is not None else 2**31
            if isinstance(default, float):
                descriptor.floating_point_range = [
                    FloatingPointRange(from_value=float(low), to_value=float(high), step=0.0)
                ]
                descriptor.additional_constraints = f'{low}..{high}'
            else:
                descriptor.integer_range = [IntegerRange(from_value=low, to_value=high, step=1)]
        try:
            return self.declare_parameter(name, default, descriptor).value
        except Exception as error:  # rclpy has one class per fault; all mean the same to a user
            raise Pi0RosError(f"parameter '{name}' ({description}): {error}") from None

    def parameter(self, name: str):
        return self.get_parameter(name).value

    # -- transitions --------------------------------------------------------------------------
    def on_configure(self, state):
        try:
            self.configure()
        except EndRequested:
            self._run_quietly(self.cleanup)
            return TransitionCallbackReturn.FAILURE
        except Exception as error:
            self._report('configure', error)
            self._run_quietly(self.cleanup)
            return TransitionCallbackReturn.FAILURE
        self._configured = True
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state):
        result = super().on_activate(state)
        try:
            self.activate()
        except Exception as error:
            self._report('activate', error)
            self._run_quietly(self.deactivate)
            return TransitionCallbackReturn.FAILURE
        self._active = True
        return result

    def on_deactivate(self, state):
        self._active = False
        self._run_quietly(self.deactivate)
        return super().on_deactivate(state)

    def on_cleanup(self, state):
        self._configured = False
        self._run_quietly(self.cleanup)
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state):
        self.tear_down()
        return TransitionCallbackReturn.SUCCESS

    def on_error(self, state):
        self.tear_down()
        return TransitionCallbackReturn.SUCCESS

    def tear_down(self) -> None:
        """Stop and undo everything from whatever state the node is in."""
        if self._active:
            self._active = False
            self._run_quietly(self.deactivate)
        if self._configured:
            self._configured = False
            self._run_quietly(self.cleanup)

    def start(self) -> bool:
        """Configure and activate when ``autostart`` says so; False when that failed."""
        if not self.parameter('autostart'):
            return True
        return (
            self.trigger_configure() == TransitionCallbackReturn.SUCCESS
            and self.trigger_activate() == TransitionCallbackReturn.SUCCESS
        )

    # -- private ------------------------------------------------------------------------------
    def _report(self, transition: str, error: Exception) -> None:
        self.failure = str(error) or type(error).__name__
        if isinstance(error, Pi0RosError):
            self.get_logger().error(f'cannot {transition}: {error}')
        else:
            self.get_logger().error(f'cannot {transition}:\n{traceback.format_exc()}')

    def _run_quietly(self, hook) -> None:
        try:
            hook()
        except Exception:
            self.get_logger().error(f'{hook.__name__} failed:\n{traceback.format_exc()}')

    def _publish_diagnostics(self) -> None:
        rows = self.diagnostics()
        if self.failure:
            rows = [Status('lifecycle', ERROR, self.failure), *rows]
        message = DiagnosticArray()
        message.header.stamp = self.get_clock().now().to_msg()
        prefix = self.get_fully_qualified_name().lstrip('/')
        for row in rows:
            message.status.append(
                DiagnosticStatus(
                    name=f'{prefix}: {row.name}',
                    hardware_id=prefix,
                    level=row.level,
                    message=row.message,
                    values=[KeyValue(key=k, value=str(v)) for k, v in row.values.items()],
                )
            )
        self._diagnostics.publish(message)


SHUTDOWN_BOUND_S = 3.0
"""How long a node may take to end before the process ends without it (field report B38)."""

SAME_REQUEST_S = 0.5
"""Signals so close together are one request to end."""


def run(node_class, args: list[str] | None = None, executor_class=SingleThreadedExecutor) -> int:
    """
    Run a node until SIGINT, SIGTERM or shutdown of the context; the nodes' ``main``.

    :return: 0, or 2 when autostart failed (the reason is in the log).
    """
    options = {}
    if hasattr(rclpy, 'SignalHandlerOptions'):  # Humble has it in rclpy.signals only
        options = {'signal_handler_options': rclpy.SignalHandlerOptions.NO}
    else:
        from rclpy.signals import SignalHandlerOptions

        options = {'signal_handler_options': SignalHandlerOptions.NO}
    rclpy.init(args=args, **options)
    stop = threading.Event()
    executor = executor_class()
    node, code, asked_at = None, 0, 0.0

    def request_stop(*_):
        nonlocal asked_at
        if stop.is_set():
            # One Ctrl-C under ros2 launch arrives twice: from the terminal and from launch.
            if time.monotonic() - asked_at > SAME_REQUEST_S:
                os._exit(1)  # a second Ctrl-C does not wait
            return
        asked_at = time.monotonic()
        stop.set()
        if node is not None:
            node.ending.set()
        guard = threading.Timer(SHUTDOWN_BOUND_S, os._exit, args=(1,))
        guard.daemon = True
        guard.start()
        executor.wake()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request_stop)
    try:
        node = node_class()
        executor.add_node(node)
        if stop.is_set():
            pass
        elif node.start():
            while rclpy.ok() and not stop.is_set():
                executor.spin_once(timeout_sec=0.5)
        elif not stop.is_set():
            code = EXIT_START_FAILED
    except Pi0RosError as error:
        print(f'{node_class.__name__}: {error}', file=sys.stderr)
        code = EXIT_START_FAILED
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        if node is not None:
            node.tear_down()
            executor.remove_node(node)
            node.destroy_node()
        executor.shutdown(timeout_sec=1.0)
        if rclpy.ok():
            rclpy.shutdown()
    return code
