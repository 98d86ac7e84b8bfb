# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
What the safety filter takes from its inputs: by name, whole, or not at all.

Used by ``nodes.safety_filter``; knows no messages, only their fields, and is told the time (s, on
the filter's own clock). Nothing here is trusted: every reader returns a reason when it refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pi0_ros.robot import RobotSpec

CACHED_ORDERS = 16
"""Orders of joint names that a reader remembers; a driver has one, an attacker many."""

RIVAL_WINDOW = 0.5
"""How long [s] after its last message a publisher still counts as a commander."""

OLD_STAMP = 1.0
"""A setpoint due this long ago [s] is of the past; a network that is alive delays by less."""

OLD_STEADY = 1.0
"""How long [s] old stamps must advance evenly to be those of another machine's clock."""

LOST_IN_A_ROW = 25
"""Setpoints that one publisher may lose in a row before it is taken for another: half a second."""


class MeasuredPose:
    """
    The measured pose, merged by name from any number of joint-state topics.

    A pose is complete when EVERY configured joint was read since the last complete pose, each
    within ``max_age`` seconds: a gripper's message on a shared topic is not the arm's (B14), and a
    silent arm makes no pose.
    """

    def __init__(self, robot: RobotSpec, max_age: float):
        self._names = robot.state_names
        self._max_age = max_age
        self._positions = np.full(robot.dof, np.nan)
        self._read_at = np.full(robot.dof, -np.inf)
        self._seen = np.zeros(robot.dof, dtype=bool)
        self._index = {topic: _names_on(robot, topic) for topic, _ in robot.joint_state_sources}
        self._orders: dict[tuple, tuple[np.ndarray, np.ndarray] | str] = {}

    def add(
        self, topic: str, names: Sequence[str], positions: Sequence[float], now: float
    ) -> tuple[np.ndarray | None, str]:
        """
        Merge one message.

        :return: the pose float64 [dof] in the order of ``state_names`` when this message completed
            it, else None; and why the message was refused, '' when it was not. A message without
            positions, or without a joint of ours, is neither: it is ignored.
        """
        if len(positions) == 0 and len(names):
            return None, ''
        if len(names) != len(positions):
            return None, f'{topic}: {len(names)} names and {len(positions)} positions; ignored'
        if len(names) == 0:
            return None, f'{topic}: a message without joint names; ignored'
        order = self._order(topic, tuple(names))
        if isinstance(order, str):
            return None, order
        ours, theirs = order
        if len(ours) == 0:
            return None, ''
        values = np.asarray(positions, dtype=np.float64)[theirs]
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            return None, f'{topic}: {self._names[ours[bad]]} is {values[bad]}; ignored'
        if len(ours) > 1 and not values.any():
            return None, (
                f'{topic}: every joint is exactly 0.0, as of a driver that has read nothing yet; '
                'ignored'
            )
        self._positions[ours] = values
        self._read_at[ours] = now
        self._seen[ours] = True
        self._seen &= now - self._read_at <= self._max_age
        if not self._seen.all():
            return None, ''
        self._seen[:] = False
        return self._positions.copy(), ''

    def missing(self, now: float) -> list[str]:
        """Return the joints that were not read within ``max_age``."""
        return [n for n, t in zip(self._names, self._read_at) if now - t > self._max_age]

    def forget(self) -> None:
        """Start anew, as when time jumped."""
        self._read_at[:] = -np.inf
        self._seen[:] = False

    def _order(self, topic: str, names: tuple[str, ...]):
        key = (topic, names)
        if key not in self._orders:
            if len(self._orders) >= CACHED_ORDERS:
                self._orders.clear()
            index = self._index[topic]
            pairs = [(index[name], place) for place, name in enumerate(names) if name in index]
            ours = [i for i, _ in pairs]
            twice = sorted({self._names[i] for i in ours if ours.count(i) > 1})
            if twice:
                self._orders[key] = f'{topic}: {", ".join(twice)} comes twice; ignored'
            else:
                self._orders[key] = (
                    np.array(ours, dtype=int), np.array([p for _, p in pairs], dtype=int)
                )  # fmt: skip
        return self._orders[key]


def _names_on(robot: RobotSpec, topic: str) -> dict[str, int]:
    """Return vector index by every name that a joint may have in messages of one topic."""
    arms = [arm for arm in robot.arms if arm.joint_states == topic]
    full = {robot.state_names[i]: i for arm in arms for i in arm.indices}
    bare: dict[str, int | None] = {}
    for arm in arms:
        for i in arm.indices:
            name = robot.state_names[i].removeprefix(arm.prefix)
            bare[name] = None if name in bare else i  # on a shared topic only full names are clear
    return {**{name: i for name, i in bare.items() if i is not None}, **full}


class SetpointReader:
    """Raw setpoints into command units: every joint of the robot by name, finite, or refused."""

    def __init__(self, robot: RobotSpec):
        self._robot = robot
        self._names = robot.joint_names
        self._orders: dict[tuple[str, ...], np.ndarray | str] = {}

    def read(
        self, names: Sequence[str], positions: Sequence[float]
    ) -> tuple[np.ndarray | None, str]:
        """
        Return the setpoint float64 [dof] in command units, or None and the reason.

        :param names: any order; exactly the robot's joint names, each once.
        :param positions: policy units.
        """
        if len(positions) != len(names) or len(names) == 0:
            return None, f'{len(names)} names and {len(positions)} positions'
        order = self._order(tuple(names))
        if isinstance(order, str):
            return None, order
        values = np.asarray(positions, dtype=np.float64)[order]
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            return None, f'{self._names[bad]} is {values[bad]}'
        return self._robot.policy_to_command(values), ''

    def _order(self, names: tuple[str, ...]):
        if names not in self._orders:
            if len(self._orders) >= CACHED_ORDERS:
                self._orders.clear()
            twice = sorted({n for n in names if names.count(n) > 1})
            missing = [n for n in self._names if n not in names]
            unknown = [n for n in names if n not in self._names]
            faults = [
                f'{what} {", ".join(found[:4])}{" ..." if len(found) > 4 else ""}'
                for what, found in (
                    ('given twice:', twice), ('missing:', missing), ('unknown:', unknown)
                )
                if found
            ]  # fmt: skip
            self._orders[names] = (
                'joint names do not fit, ' + '; '.join(faults)
                if faults
                else np.array([names.index(n) for n in self._names], dtype=int)
            )
        return self._orders[names]


class StampAge:
    """
    Refuses setpoints that are stamped long ago: commands of the past, sent again.

    The clocks of two machines may differ, so an old stamp alone says little. A stream whose stamps
    are all equally old, and advance as its messages arrive, is believed after ``OLD_STEADY``
    seconds, and from then on its age is the usual one.
    """

    def __init__(self):
        self._usual = 0.0
        self._suspect: tuple[float, float, float, float] | None = None

    def fault(self, due: float, clock_now: float, now: float) -> str:
        """
        Return why a setpoint is refused, '' when it is not.

        :param due: its stamp [s]; 0 (never set) is not judged.
        :param clock_now: this machine's clock [s], of the same kind as the stamp.
        :param now: the filter's own time [s].
        """
        age = clock_now - due
        if due == 0.0 or age - self._usual <= OLD_STAMP:
            if due:
                self._usual = max(0.0, min(self._usual, age))
            self._suspect = None
            return ''
        since = now
        if self._suspect is not None:
            last_age, last_due, last_at, began = self._suspect
            if abs(age - last_age) <= 0.1 and due > last_due and now - last_at <= 0.2:
                since = began
        if now - since >= OLD_STEADY:
            self._usual, self._suspect = age, None
            return ''
        self._suspect = (age, due, now, since)
        return f'stamped {age:.1f} s ago: an old command, or clocks that differ (synchronise them)'


class Commanders:
    """
    Lets one publisher command at a time, and notices when two do.

    The first one heard commands. Another takes over when that one was silent for ``RIVAL_WINDOW``
    seconds; until then it is not listened to. When the first speaks on after the other began, they
    are rivals: neither is listened to until one of them has been silent for as long.

    From Kilted on rclpy says who sent a message. Before, publishers are told apart by their
    sequence numbers, each of which counts on its own; without those (Humble) every publisher in
    the graph counts while anybody speaks, a silent one too.
    """

    def __init__(self):
        self._heard: dict[bytes | int | None, float] = {}  # sender -> when last
        self._counts: dict[int, int] = {}  # stream -> its latest sequence number
        self._streams = 0
        self._commander: bytes | int | None = None
        self._fight = False

    def heard(self, sender: bytes | None, sequence: int | None, now: float) -> bool:
        """
        Note a message; return whether its sender may command.

        :param sender: its publisher's id, where known.
        :param sequence: its publisher's sequence number, where known.
        """
        self._forget(now)
        if sender is None and sequence is not None:
            sender = self._stream_of(sequence)
        if self._commander not in self._heard:
            self._commander = sender
        before = self._heard.get(sender)
        if sender == self._commander and before is not None:
            others = (t for other, t in self._heard.items() if other != sender)
            self._fight = self._fight or any(t >= before for t in others)
        self._heard[sender] = now
        return sender == self._commander and not self._fight

    def rivals(self, endpoints: Iterable[tuple[str, bytes]], now: float) -> list[str]:
        """
        Return the names of the rivals, [] when there are none.

        :param endpoints: (node name, publisher id) of every publisher in the graph.
        """
        self._forget(now)
        if None in self._heard:
            names = sorted(name for name, _ in endpoints)
            return names if len(names) > 1 else []
        if not self._fight:
            return []
        known = all(isinstance(sender, bytes) for sender in self._heard)
        return sorted(name for name, gid in endpoints if not known or gid in self._heard)

    def in_doubt(self, now: float) -> bool:
        """Return whether :meth:`rivals` needs to look at the graph at all."""
        self._forget(now)
        return self._fight or None in self._heard

    def _stream_of(self, sequence: int) -> int:
        """
        Return the stream that a sequence number continues, with a few lost; else a new one.

        Of two that it continues as well the one heard last counts: it is the one that goes on.
        """
        gaps = {s: sequence - count for s, count in self._counts.items()}
        near = [stream for stream, gap in gaps.items() if 0 < gap <= LOST_IN_A_ROW]
        stream = min(near, key=lambda s: (gaps[s], -self._heard[s]), default=None)
        if stream is None:
            stream = self._streams = self._streams + 1
        self._counts[stream] = sequence
        return stream

    def _forget(self, now: float) -> None:
        for sender in [s for s, t in self._heard.items() if now - t > RIVAL_WINDOW]:
            del self._heard[sender]
            self._counts.pop(sender, None)
        self._fight = self._fight and len(self._heard) > 1


class Heartbeat:
    """
    Says whether the required stop publisher lives.

    It does while its messages come in time. A publisher that never sent periodically (a button
    that speaks only when pressed) lives while DDS says so, by its liveliness.
    """

    PERIODIC_AFTER = 3
    """In-time messages in a row that make a publisher a periodic one."""

    def __init__(self, timeout: float):
        self._timeout = timeout
        self._last: float | None = None
        self._in_time = 0
        self._alive = 0
        self._missed = False

    def beat(self, now: float) -> None:
        """Note a message."""
        steady = self._last is not None and now - self._last <= self._timeout
        self._in_time = min(self._in_time + 1, self.PERIODIC_AFTER) if steady else 0
        self._last = now
        self._missed = False

    def liveliness(self, alive: int) -> None:
        """Note how many publishers with a liveliness lease are alive."""
        if alive < self._alive:
            self._missed = True
        self._alive = alive

    def deadline_missed(self) -> None:
        """Note that a publisher broke the deadline that it offers."""
        self._missed = True

    def lost(self, now: float) -> bool:
        """Return whether the stop publisher must be taken for dropped (or was never there)."""
        if self._missed or self._last is None:
            return True
        if now - self._last <= self._timeout:
            return False
        return self._in_time >= self.PERIODIC_AFTER or self._alive == 0
