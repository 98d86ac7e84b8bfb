# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
What the demo tells about a run, from its bag alone: figures, a plot, an animation.

Limits are checked here again from the recorded commands, by differences, without asking the
filter that was to keep them. Imports no ROS; MuJoCo is used to draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rosbags.highlevel import AnyReader

from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import RobotSpec

NANOSECONDS = 1_000_000_000

TOLERANCE = 1e-3
"""Relative excess of a rate over its limit that counts as rounding of sampled positions."""

POSITION_TOLERANCE = 1e-6
"""Excess over a position limit [rad] that counts as rounding."""

FRAME_SIZE = (360, 480)
"""Height and width of the animation [px]: the top camera's view, larger than the policy sees."""

DRAWN_FOVY_DEG = 60.0
"""Vertical field of view of the animation: table and both grippers; the scene's 78 show floor."""

FRAME_PERIOD_S = 0.1
PATH_COLOURS = ((86, 190, 255), (255, 166, 64))
"""Predicted path of the left and of the right gripper."""

INK, MUTED, GRID = '#1f2933', '#7b8794', '#e4e7eb'
COMMANDED, MEASURED = '#e8590c', '#1971c2'


@dataclass(frozen=True)
class Run:
    """
    The parts of a bag that the demo looks at; times in seconds of simulated time.

    ``commands`` [n, dof] and ``measured`` [m, dof] in command units; ``chunks``: (received,
    observed, actions [h, dof] in policy units); ``states``: (time, simulator's positions).
    """

    command_times: np.ndarray
    commands: np.ndarray
    measured_times: np.ndarray
    measured: np.ndarray
    chunks: tuple
    states: tuple


def read_run(bag: Path, robot: RobotSpec) -> Run:
    """
    Read a bag that the demo has recorded.

    :raises Pi0RosError: when it cannot be read.
    """
    topics = {
        '/joint_command': [], '/action_chunk': [], '/sim_robot/state': [],
        **{topic: [] for topic, _ in robot.joint_state_sources},
    }  # fmt: skip
    try:
        with AnyReader([bag]) as reader:
            wanted = [c for c in reader.connections if c.topic in topics]
            for connection, received, raw in reader.messages(wanted):
                message = reader.deserialize(raw, connection.msgtype)
                topics[connection.topic].append((received, message))
    except Exception as error:
        raise Pi0RosError(f'{bag}: cannot be read ({error})') from None

    order = {name: i for i, name in enumerate(robot.joint_names)}
    times, commands = [], []
    for _, message in topics['/joint_command']:
        row = np.full(robot.dof, np.nan)
        row[[order[name] for name in message.name]] = message.position
        times.append(_seconds(message.header.stamp))
        commands.append(row)
    measured_times, measured = _measured(topics, robot)
    chunks = tuple(
        (
            received / NANOSECONDS,
            _seconds(message.header.stamp),
            np.array([point.positions for point in message.points]),
        )
        for received, message in topics['/action_chunk']
    )
    states = tuple(
        (received / NANOSECONDS, np.array(message.data))
        for received, message in topics['/sim_robot/state']
    )
    return Run(
        np.array(times),
        np.array(commands).reshape(-1, robot.dof),
        measured_times,
        measured,
        chunks,
        states,
    )


def _seconds(stamp) -> float:
    return stamp.sec + stamp.nanosec / NANOSECONDS


def _measured(topics, robot: RobotSpec) -> tuple[np.ndarray, np.ndarray]:
    """Join the arms' joint states by stamp, in command units."""
    parts: dict[float, dict[str, float]] = {}
    for topic, prefix in robot.joint_state_sources:
        for _, message in topics[topic]:
            names = (robot.resolve_joint(prefix, name) for name in message.name)
            row = parts.setdefault(_seconds(message.header.stamp), {})
            row.update(zip(names, message.position))
    complete = [
        (stamp, [row[name] for name in robot.state_names])
        for stamp, row in sorted(parts.items())
        if all(name in row for name in robot.state_names)
    ]
    times = np.array([stamp for stamp, _ in complete])
    rows = [robot.measured_to_command(np.array(row)) for _, row in complete]
    return times, np.array(rows).reshape(-1, robot.dof)


def limit_violations(times: np.ndarray, commands: np.ndarray, robot: RobotSpec) -> list[str]:
    """
    Check commands against every limit of the robot, by backward differences of positions.

    The mean velocity, acceleration and jerk over a tick cannot exceed the bounds of their
    instantaneous values. Differences across a gap in time are left out.

    :param times: stamps [n], s.
    :param commands: float [n, dof], command units.
    :return: one sentence for each command outside a limit.
    """
    if len(commands) == 0:
        return []
    period = 1.0 / robot.control_rate
    steps = np.diff(times)
    even = np.abs(steps - period) < 0.02 * period
    found = []

    def complain(rows, joint: int, kind: str, values, limit: float) -> None:
        name = robot.joints[joint].name
        found.extend(
            f'{name}: {kind} {values[row]:.4g} exceeds {limit:.4g} at {times[row]:.2f} s'
            for row in rows
        )

    if not np.isfinite(commands).all():
        found.append('a command is not finite or lacks a joint')
    order1 = np.full(commands.shape, np.nan)
    order2, order3 = order1.copy(), order1.copy()
    order1[1:] = np.diff(commands, axis=0) / period
    order1[1:][~even] = np.nan
    order2[2:] = np.diff(order1[1:], axis=0) / period
    order3[3:] = np.diff(order2[2:], axis=0) / period
    for index, joint in enumerate(robot.joints):
        position = commands[:, index]
        above = np.flatnonzero(position > joint.upper + POSITION_TOLERANCE)
        below = np.flatnonzero(position < joint.lower - POSITION_TOLERANCE)
        complain(above, index, 'position', position, joint.upper)
        complain(below, index, 'position', position, joint.lower)
        for kind, values in (('velocity', order1), ('acceleration', order2), ('jerk', order3)):
            limit = getattr(joint, kind)
            column = np.abs(values[:, index])
            rows = np.flatnonzero(column > limit * (1.0 + TOLERANCE))
            complain(rows, index, kind, column, limit)
    return found


def plot_joints(run: Run, robot: RobotSpec, path: Path, begin: float, end: float) -> None:
    """
    Draw commanded against measured positions, one panel a joint, limits where they are near.

    :param begin: simulated seconds, zero of the time axis; ``end`` likewise.
    """
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    arms = robot.arms
    rows = max(len(arm.joints) for arm in arms)
    with pyplot.rc_context({'font.size': 8, 'axes.edgecolor': GRID, 'text.color': INK}):
        figure, panels = pyplot.subplots(
            rows, len(arms), figsize=(6.2 * len(arms), 1.45 * rows + 1.0),
            sharex=True, squeeze=False,
        )  # fmt: skip
        for column, arm in enumerate(arms):
            for row in range(rows):
                axes = panels[row, column]
                if row >= len(arm.joints):
                    axes.set_visible(False)
                    continue
                index, joint = arm.indices[row], arm.joints[row]
                _plot_joint(axes, run, index, joint, begin, end)
                axes.set_title(joint.name, loc='left', fontsize=9, color=INK, pad=3)
                axes.set_ylabel(joint.unit, color=MUTED)
            panels[rows - 1, column].set_xlabel('simulated time [s]', color=MUTED)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.suptitle(
            f'{robot.name}: commanded against measured', x=0.01, y=0.992, ha='left', fontsize=12
        )
        figure.legend(
            handles, labels, loc='upper right', ncol=len(labels), frameon=False, fontsize=9
        )
        figure.tight_layout(rect=(0, 0, 1, 0.985))
        figure.savefig(path, dpi=110, facecolor='white')
        pyplot.close(figure)


def _plot_joint(axes, run: Run, index: int, joint, begin: float, end: float) -> None:
    values = []
    for times, positions, label, colour, width in (
        (run.measured_times, run.measured, 'measured', MEASURED, 1.3),
        (run.command_times, run.commands, 'commanded', COMMANDED, 0.9),
    ):
        shown = (times >= begin) & (times <= end)
        axes.plot(times[shown] - begin, positions[shown, index], label=label, color=colour,
                  lw=width)  # fmt: skip
        values.append(positions[shown, index])
    axes.grid(True, color=GRID, lw=0.6)
    axes.tick_params(colors=MUTED, length=0)
    for side in ('top', 'right'):
        axes.spines[side].set_visible(False)
    values = np.concatenate(values)
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return
    axes.set_xlim(0.0, end - begin)
    low, high = values.min(), values.max()
    margin = max(0.08 * (high - low), 0.02)
    axes.set_ylim(low - margin, high + margin)
    for limit in (joint.lower, joint.upper):
        if low - margin <= limit <= high + margin:
            axes.axhline(limit, color=INK, lw=0.7, ls=(0, (4, 3)))


def animate_top_camera(
    run: Run, robot: RobotSpec, task: str, path: Path, begin: float, end: float
) -> int:
    """
    Draw the top camera with the path that the policy predicts for both grippers.

    The scene is drawn again from the simulator's recorded state, larger than the policy sees it.

    :param begin: simulated seconds; ``end`` likewise.
    :return: number of frames written; 0 writes no file.
    :raises SimError: when rendering is not possible.
    """
    from PIL import Image

    from pi0_ros.sim import AlohaSim

    sim = AlohaSim(task, robot, top_fovy_deg=DRAWN_FOVY_DEG)
    height, width = FRAME_SIZE
    times = np.array([t for t, _ in run.states])
    frames, palette = [], None
    font = _font(26)
    chunk_at, paths, trail = -1, None, []
    ticks = np.arange(begin, end, FRAME_PERIOD_S)
    try:
        for now in ticks:
            index = np.searchsorted(times, now)
            if index >= len(times):
                break
            sim.state = run.states[index][1]
            while chunk_at + 1 < len(run.chunks) and run.chunks[chunk_at + 1][0] <= now:
                chunk_at += 1
                commands = robot.policy_to_command(run.chunks[chunk_at][2])
                paths = sim.gripper_positions(_inside_limits(commands, robot))
            here = sim.gripper_positions(_inside_limits(_measured_at(run, now), robot))[0]
            trail = [*trail[-12:], here]
            ahead = None
            if paths is not None:
                done = int((now - run.chunks[chunk_at][1]) * robot.policy_rate)
                ahead = paths[min(max(done, 0), len(paths) - 1) :]
            twice = Image.fromarray(sim.render('cam_high', 2 * height, 2 * width))
            picture = twice.resize((width, height), Image.Resampling.BOX)  # smooth edges
            _draw_paths(picture, sim, ahead, np.array(trail))
            picture = _label(picture, f'{now - begin:5.1f} s', font)
            if palette is None:
                palette = _palette(picture)
            frames.append(picture.quantize(palette=palette, dither=Image.Dither.NONE))
    finally:
        sim.close()
    if frames:
        frames[0].save(
            path, save_all=True, append_images=frames[1:], loop=0,
            duration=round(1000 * FRAME_PERIOD_S), optimize=False,
        )  # fmt: skip
    return len(frames)


def _inside_limits(commands, robot: RobotSpec) -> np.ndarray:
    lower = [joint.lower for joint in robot.joints]
    upper = [joint.upper for joint in robot.joints]
    return np.clip(np.nan_to_num(commands), lower, upper)


def _measured_at(run: Run, now: float) -> np.ndarray:
    index = min(np.searchsorted(run.measured_times, now), len(run.measured_times) - 1)
    return run.measured[index]


def _draw_paths(picture, sim, ahead, trail) -> None:
    """Draw on a picture in place: the path ahead fading with time, the way just gone in grey."""
    from PIL import Image, ImageDraw

    width, height = picture.size
    scale = 2  # drawn twice as large and reduced: smooth lines
    overlay = Image.new('RGBA', (width * scale, height * scale), (0, 0, 0, 0))
    draw = ImageDraw.Draw(overlay)

    def pixels(points):
        return sim.project(points, 'cam_high', height, width) * scale

    for arm, colour in enumerate(PATH_COLOURS):
        way = pixels(trail[:, arm])
        for one, other in zip(way[:-1], way[1:]):
            draw.line([*one, *other], fill=(200, 206, 212, 150), width=2 * scale)
        if ahead is None:
            continue
        way = pixels(ahead[:, arm])
        for step in range(len(way) - 1):
            opacity = round(255 - 190 * step / max(len(way) - 1, 1))
            draw.line([*way[step], *way[step + 1]], fill=(*colour, opacity), width=3 * scale)
        for step in range(0, len(way), 10):
            x, y = way[step]
            r = (4 if step == 0 else 2.5) * scale
            opacity = round(255 - 170 * step / max(len(way) - 1, 1))
            draw.ellipse([x - r, y - r, x + r, y + r], fill=(*colour, opacity))
    overlay = overlay.resize((width, height), Image.Resampling.LANCZOS)
    picture.paste(overlay, (0, 0), overlay)


def _label(picture, clock: str, font):
    from PIL import Image, ImageDraw

    width, height = picture.size
    strip = Image.new('RGB', (2 * width, 48), (12, 14, 18))
    draw = ImageDraw.Draw(strip)
    draw.text((20, 8), 'top camera, path predicted by the policy', fill=(206, 212, 218), font=font)
    x = 600
    for name, colour in zip(('left', 'right'), PATH_COLOURS):
        draw.ellipse([x, 18, x + 14, 32], fill=colour)
        draw.text((x + 22, 8), name, fill=(206, 212, 218), font=font)
        x += 100
    draw.text((2 * width - 20, 8), clock, fill=(206, 212, 218), font=font, anchor='ra')
    framed = Image.new('RGB', (width, height + 24))
    framed.paste(strip.resize((width, 24), Image.Resampling.LANCZOS), (0, 0))
    framed.paste(picture, (0, 24))
    return framed


def _palette(picture):
    """Return one palette for all frames, so that still parts do not flicker."""
    from PIL import Image, ImageDraw

    width, height = picture.size
    sample = Image.new('RGB', (width, height + 60))
    sample.paste(picture, (0, 0))
    draw = ImageDraw.Draw(sample)
    for row, colour in enumerate((*PATH_COLOURS, (230, 30, 30))):  # all their shades, weighty
        for x in range(width):
            shade = tuple(round(c * x / width) for c in colour)
            draw.line([x, height + 20 * row, x, height + 20 * row + 19], fill=shade)
    return sample.quantize(colors=128)


def _font(size: int):
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(f'{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf', size)
