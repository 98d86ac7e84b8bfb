# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The simulated ALOHA as a ROS 2 robot, and the source of ``/clock``.

Publishes what the real robot's drivers publish (cameras, joint states under Interbotix's names, on
the topics of the robot's YAML) and takes the safety filter's ``joint_command``. It stands in the
start pose until it is commanded, and again after ``sim_robot/reset``.

Time. Every physics tick (10 ms) is announced on ``/clock`` first, then its joint states, then its
images, so that no message is stamped ahead of the clock; other nodes compute while this one draws.
With ``real_time_factor`` above 0 the wall clock paces the ticks, and peers that are too slow are
seen to be too slow, as on a real robot. With 0 the simulation runs as fast as it can and would
outrun its controllers by seconds: a lock step keeps it with them. After each control period it
waits for the next message of every peer in ``lockstep`` that is talking (the filter's commands,
the policy's setpoints), so that simulated time never runs ahead of the controller. A peer that
stays silent for ``lockstep_timeout`` of WALL time is no longer waited for until it speaks again:
a dead or disabled controller costs one such pause, and time goes on.

``sim_robot/reset`` puts objects at new random places and the arms in the start pose AT ONCE; time
goes on. Disable the filter before: an enabled one goes on commanding the old pose.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback

import numpy as np
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Float32, Float64MultiArray
from std_srvs.srv import Trigger

from pi0_ros.errors import Pi0RosError
from pi0_ros.messages import NANOSECONDS, image_rgb8, joint_state, time_from_ns
from pi0_ros.nodes.lifecycle import OK, WARN, ManagedNode, Status, run
from pi0_ros.robot import RobotSpec
from pi0_ros.sim import AlohaSim

TICK_S = 0.01
"""Physics tick, period of ``/clock`` and of joint states: Interbotix publishes at 100 Hz."""

JUDGEMENT_PERIOD_S = 0.1
"""Reward and success are published this often, and at once when they change."""

MAX_LAG_S = 0.1
"""Beyond this lag behind the wall clock the simulation goes on slower instead of catching up."""

START_BOUND_S = 60.0
"""Loading the scene and drawing the first frame take about 1 s; software rendering cold, 10 s."""

RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""Offered on every topic: subscribers that ask for reliable and best effort both match."""


class LockStep:
    """
    Keeps simulated time with the peers that are talking.

    ``heard`` is called from the executor's thread, ``wait`` from the simulation's.
    """

    def __init__(self, peers):
        self._changed = threading.Condition()
        self._heard = dict.fromkeys(peers, 0)
        self._released = dict.fromkeys(peers, 0)
        self._talking = dict.fromkeys(peers, False)
        self.timeouts = dict.fromkeys(peers, 0)

    def heard(self, peer: str) -> None:
        with self._changed:
            if peer not in self._heard:
                return
            self._heard[peer] += 1
            self._talking[peer] = True
            self._changed.notify_all()

    def forget(self) -> None:
        """Wait for nobody until somebody speaks again; ends a wait in progress."""
        with self._changed:
            self._talking = dict.fromkeys(self._talking, False)
            self._changed.notify_all()

    def wait(self, timeout: float) -> None:
        """Return when every talking peer has spoken since the last call, or after ``timeout``."""
        deadline = time.monotonic() + timeout
        with self._changed:
            for peer in self._heard:
                while self._talking[peer] and self._heard[peer] == self._released[peer]:
                    remaining = deadline - time.monotonic()
                    if remaining <= 0.0:
                        self._talking[peer] = False
                        self.timeouts[peer] += 1
                        break
                    self._changed.wait(remaining)
                self._released[peer] = self._heard[peer]


class SimRobot(ManagedNode):
    """
    Simulation thread plus publishers and subscriptions.

    The simulation's thread owns the physics and the OpenGL context from construction to close;
    the executor's thread hands it commands and reset requests.
    """

    def __init__(self):
        super().__init__('sim_robot')
        fixed = {'read_only': True}
        self.declare('robot', 'aloha', 'robot name or path of its YAML file', **fixed)
        self.declare('task', 'transfer_cube', 'scene: transfer_cube or insertion', **fixed)
        self.declare('seed', 0, 'seed of the object poses', minimum=0, **fixed)
        self.declare(
            'real_time_factor', 1.0,
            'simulated seconds per wall second; 0: as fast as rendering and the lock step allow',
            minimum=0.0,
        )  # fmt: skip
        self.declare('width', 128, 'image width [px]', minimum=8, maximum=2048, **fixed)
        self.declare('height', 128, 'image height [px]', minimum=8, maximum=2048, **fixed)
        self.declare(
            'top_fovy_deg', 0.0,
            "vertical field of view of the top camera [degrees]; 0: gym-aloha's own (78)",
            minimum=0.0, maximum=170.0, **fixed,
        )  # fmt: skip
        self.declare(
            'camera_rate', 25.0, 'images of each camera per simulated second [Hz]; 0: none',
            minimum=0.0, maximum=1.0 / TICK_S, **fixed,
        )  # fmt: skip
        self.declare(
            'duration', 0.0, 'end after this many simulated seconds; 0: never',
            minimum=0.0, **fixed,
        )  # fmt: skip
        self.declare(
            'lockstep', ['joint_command', 'joint_command_raw'],
            'topics whose next message is awaited each control period if real_time_factor is 0',
            **fixed,
        )  # fmt: skip
        self.declare(
            'lockstep_timeout', 0.25, 'longest wait for one of them [s of wall time]',
            minimum=0.0, maximum=10.0, **fixed,
        )  # fmt: skip
        self._thread: threading.Thread | None = None
        self._owned = []
        self._running = threading.Event()
        self._idle = threading.Event()
        self._stop = threading.Event()
        self._command_lock = threading.Lock()
        self._command: np.ndarray | None = None
        self._reset_done: threading.Event | None = None
        self._refused: str | None = None
        self._ticks = 0
        self._commands = 0
        self._render_s = 0.0
        self._measured_factor = 0.0
        self._slow = False

    # -- lifecycle (executor's thread) ---------------------------------------------------------

    def configure(self) -> None:
        self.robot = RobotSpec.load(self.parameter('robot'))
        self._index = {name: i for i, name in enumerate(self.robot.joint_names)}
        self._period_ticks = round(1.0 / (self.robot.control_rate * TICK_S))
        if abs(self._period_ticks * TICK_S * self.robot.control_rate - 1.0) > 1e-6:
            raise Pi0RosError(
                f'control_rate {self.robot.control_rate} Hz of {self.robot.source} does not fit '
                f'the simulation, whose ticks are {TICK_S * 1e3:.0f} ms; use 50 or 100 Hz'
            )
        self._lockstep = LockStep(self.parameter('lockstep'))
        self._pub_clock = self._publisher(Clock, '/clock')
        self._pub_joints = [self._publisher(JointState, a.joint_states) for a in self.robot.arms]
        self._pub_images = {
            name: self._publisher(Image, camera.topic)
            for name, camera in self.robot.cameras.items()
        }
        for camera in self.robot.cameras.values():
            if camera.transport != 'raw':
                raise Pi0RosError(
                    f"camera '{camera.name}' of {self.robot.source} has transport "
                    f"'{camera.transport}'; the simulated robot publishes raw images only"
                )
        self._pub_state = self._publisher(Float64MultiArray, 'sim_robot/state')
        self._pub_reward = self._publisher(Float32, 'sim_robot/reward')
        self._pub_success = self._publisher(Bool, 'sim_robot/success')
        self._pub_strict = self._publisher(Bool, 'sim_robot/strict_success')
        self._subscribe('joint_command', self._on_command)
        for topic in self.parameter('lockstep'):
            if topic != 'joint_command':
                self._subscribe(topic, lambda _, peer=topic: self._lockstep.heard(peer))
        service = self.create_service(Trigger, 'sim_robot/reset', self._on_reset)
        self._owned.append((self.destroy_service, service))

        self._stop.clear()
        self._startup: list[Exception] = []
        ready = threading.Event()
        self._thread = threading.Thread(target=self._simulate, args=(ready,), name='simulation')
        self._thread.start()
        if not ready.wait(START_BOUND_S):
            raise Pi0RosError(f'the simulation did not start within {START_BOUND_S:.0f} s')
        if self._startup:
            raise self._startup[0]

    def activate(self) -> None:
        self._running.set()

    def deactivate(self) -> None:
        self._running.clear()
        self._lockstep.forget()
        self._idle.wait(5.0)

    def cleanup(self) -> None:
        self._running.clear()
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self._thread = None
        while self._owned:
            destroy, entity = self._owned.pop()
            destroy(entity)

    def diagnostics(self) -> list[Status]:
        if self._thread is None:
            return []
        message = self._refused or (
            f'slower than asked for: {self._measured_factor:.2f} simulated seconds per second'
            if self._slow
            else 'simulating'
        )
        return [
            Status(
                'simulation',
                WARN if self._refused or self._slow else OK,
                message,
                {
                    'simulated time [s]': f'{self._ticks * TICK_S:.2f}',
                    'real-time factor': f'{self._measured_factor:.3f}',
                    'drawing one frame [ms]': f'{1e3 * self._render_s:.1f}',
                    'commands received': self._commands,
                    **{f'lock step gave up on {k}': n for k, n in self._lockstep.timeouts.items()},
                },
            )
        ]

    def _publisher(self, kind, topic: str):
        publisher = self.create_publisher(kind, topic, RELIABLE)
        self._owned.append((self.destroy_publisher, publisher))
        return publisher

    def _subscribe(self, topic: str, callback) -> None:
        subscription = self.create_subscription(JointState, topic, callback, 10)
        self._owned.append((self.destroy_subscription, subscription))

    # -- callbacks (executor's thread) ---------------------------------------------------------

    def _on_command(self, message: JointState) -> None:
        command = np.full(self.robot.dof, np.nan)
        unknown = [name for name in message.name if name not in self._index]
        if not unknown and len(message.name) == len(message.position):
            command[[self._index[name] for name in message.name]] = message.position
        bad = [n for n, value in zip(self.robot.joint_names, command) if not np.isfinite(value)]
        refused = None
        if unknown:
            refused = f"joint_command names '{unknown[0]}', which {self.robot.name} does not have"
        elif bad:
            refused = f"joint_command has no finite position for '{bad[0]}'"
        if refused and refused != self._refused:
            self.get_logger().warning(f'{refused}; holding the last setpoint')
        self._refused = refused
        if not refused:
            with self._command_lock:
                self._command = command
            self._commands += 1
        self._lockstep.heard('joint_command')

    def _on_reset(self, _, response: Trigger.Response) -> Trigger.Response:
        done = threading.Event()
        self._reset_done = done
        if self._running.is_set() and done.wait(5.0):
            response.success = True
            response.message = f'new episode with seed {self._sim.seed}'
        else:
            self._reset_done = None
            response.success = False
            response.message = 'the simulation is not running; activate sim_robot first'
        return response

    # -- simulation's thread -------------------------------------------------------------------

    def _simulate(self, ready: threading.Event) -> None:
        sim = None
        try:
            sim = self._sim = AlohaSim(
                self.parameter('task'), self.robot, self.parameter('seed'),
                self.parameter('top_fovy_deg'),
            )  # fmt: skip
            if self.parameter('camera_rate') > 0.0:
                for camera in self.robot.cameras:
                    self._draw(camera)
        except Exception as error:
            self._startup.append(error)
            return
        finally:
            ready.set()
        try:
            while not self._stop.is_set():
                self._idle.set()
                if self._running.wait(0.2):
                    self._idle.clear()
                    self._run()
        except Exception as error:
            self.failure = f'the simulation failed: {error}'
            self.get_logger().fatal(f'{self.failure}\n{traceback.format_exc()}')
            self.context.try_shutdown()
        finally:
            self._idle.set()
            sim.close()

    def _run(self) -> None:
        """Tick until deactivated or the duration is over."""
        last_tick = round(self.parameter('duration') / TICK_S)
        timeout = self.parameter('lockstep_timeout')
        anchor_wall, anchor_ticks = time.monotonic(), self._ticks
        meter_wall, meter_ticks = anchor_wall, self._ticks
        while self._running.is_set() and not self._stop.is_set():
            if last_tick and self._ticks >= last_tick:
                self.get_logger().info(f'{self._ticks * TICK_S:.2f} s are simulated; ending')
                self.context.try_shutdown()
                return
            self._tick()
            factor = self.parameter('real_time_factor')
            now = time.monotonic()
            if factor > 0.0:
                due = anchor_wall + (self._ticks - anchor_ticks) * TICK_S / factor
                self._slow = now - due > MAX_LAG_S or (self._slow and now > due)
                if due > now:
                    self._stop.wait(due - now)
                elif now - due > MAX_LAG_S:
                    anchor_wall, anchor_ticks = now, self._ticks
            else:
                self._slow = False
                anchor_wall, anchor_ticks = now, self._ticks
                if self._ticks % self._period_ticks == 0:
                    self._lockstep.wait(timeout)
            if now - meter_wall > 1.0:
                self._measured_factor = (self._ticks - meter_ticks) * TICK_S / (now - meter_wall)
                meter_wall, meter_ticks = now, self._ticks

    def _tick(self) -> None:
        sim = self._sim
        done, self._reset_done = self._reset_done, None
        if done is not None:
            sim.reset()
            with self._command_lock:
                self._command = None
            done.set()
        with self._command_lock:
            command = self._command
        before = (sim.reward, sim.success, sim.strict_success)
        sim.step(command, TICK_S)
        self._ticks += 1
        stamp_ns = round(self._ticks * TICK_S * NANOSECONDS)
        self._pub_clock.publish(Clock(clock=time_from_ns(stamp_ns)))
        self._publish_joints(stamp_ns)
        rate = self.parameter('camera_rate')
        if int(self._ticks * TICK_S * rate + 1e-6) > int((self._ticks - 1) * TICK_S * rate + 1e-6):
            self._publish_images(stamp_ns)
            self._pub_state.publish(Float64MultiArray(data=sim.state.tolist()))
        verdict = (sim.reward, sim.success, sim.strict_success)
        if verdict != before or self._ticks % round(JUDGEMENT_PERIOD_S / TICK_S) == 0:
            self._pub_reward.publish(Float32(data=float(sim.reward)))
            self._pub_success.publish(Bool(data=bool(sim.success)))
            self._pub_strict.publish(Bool(data=bool(sim.strict_success)))

    def _publish_joints(self, stamp_ns: int) -> None:
        for index, publisher in enumerate(self._pub_joints):
            reading = self._sim.joint_reading(index)
            message = joint_state(reading.names, reading.position, stamp_ns)
            message.velocity = reading.velocity.tolist()
            message.effort = reading.effort.tolist()
            publisher.publish(message)

    def _publish_images(self, stamp_ns: int) -> None:
        for name, publisher in self._pub_images.items():
            publisher.publish(image_rgb8(self._draw(name), stamp_ns, name))

    def _draw(self, camera: str) -> np.ndarray:
        start = time.monotonic()
        rgb = self._sim.render(camera, self.parameter('height'), self.parameter('width'))
        self._render_s += 0.1 * (time.monotonic() - start - self._render_s)
        return rgb


def main(args=None) -> int:
    """
    Run the node.

    :return: 0; 2 when it could not start; 1 when the simulation failed while running.
    """
    nodes = []

    def sim_robot() -> SimRobot:
        nodes.append(SimRobot())
        return nodes[0]

    code = run(sim_robot, args)
    return code or int(bool(nodes) and nodes[0].failure is not None)


if __name__ == '__main__':
    sys.exit(main())
