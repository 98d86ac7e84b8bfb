# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
``pi0_ros check``: is this live system fit for this checkpoint? A table, a remedy for each fault.

Exit codes: 0 fit, 1 at least one row failed, 2 the check could not be made.
"""

from __future__ import annotations

import argparse
import difflib
import time
from dataclasses import dataclass

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.observation import Observation, ObservationBuffer, decode_image
from pi0_ros.robot import RobotSpec

PASS, WARN, FAIL = 'ok', 'warning', 'FAIL'
LOWEST_CAMERA_RATE = 10.0
"""Frames a second below which a policy that replans twice a second sees old pictures."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    verdict: str
    found: str
    remedy: str = ''


def robot_rows(survey, robot: RobotSpec, max_age: float, max_skew: float) -> list[Row]:
    """Return the rows on topics, types, rates, stamps, encodings, joints and alignment."""
    rows = []
    for name, heard in survey.cameras.items():
        rows.append(_topic_row(f'camera {name}', heard, survey, max_age, LOWEST_CAMERA_RATE,
                               robot.cameras[name].required))  # fmt: skip
        if heard.last is not None:
            rows.append(_picture_row(name, heard.last, robot.cameras[name]))
    for topic, heard in survey.joints.items():
        rows.append(_topic_row(f'joints {topic}', heard, survey, max_age, robot.control_rate / 2))
    rows.append(_joint_row(survey, robot))
    rows.append(_alignment_row(survey, robot, max_age, max_skew))
    return rows


def _topic_row(what, heard, survey, max_age, lowest_rate, required=True) -> Row:
    bad = FAIL if required else WARN
    if heard.offered and heard.wanted not in heard.offered:
        return Row(what, bad, f'{heard.topic} carries {", ".join(heard.offered)}',
                   f"expected {heard.wanted}; set 'transport' in the robot's YAML")  # fmt: skip
    if not heard.count:
        others = [topic for topic in survey.graph if topic != heard.topic]
        close = difflib.get_close_matches(heard.topic, others, 1, 0.6)
        hint = f"; did you mean '{close[0]}'?" if close else ''
        state = 'has a publisher that is silent' if heard.offered else 'has no publisher'
        return Row(what, bad, f'{heard.topic} {state}',
                   f"start the driver or mend the topic in the robot's YAML{hint}")  # fmt: skip
    offset, clock = heard.offset, 'the clock'
    if heard.sim_offset is not None and abs(heard.sim_offset) < abs(offset):
        offset, clock = heard.sim_offset, '/clock'
    found = f'{heard.rate:.1f} Hz, stamps {offset:+.3f} s from {clock}'
    if heard.zero_stamps:
        return Row(what, bad, found, 'header stamps are zero; the driver must set them')
    if abs(offset) > max_age:
        return Row(what, bad, found,
                   f'older than {max_age:g} s: synchronise the clocks (chrony)')  # fmt: skip
    if heard.rate < lowest_rate:
        return Row(what, WARN, found, f'slower than {lowest_rate:g} Hz; check driver and network')
    return Row(what, PASS, found)


def _picture_row(name, message, camera) -> Row:
    try:
        rgb = decode_image(message, camera.encoding)
    except Pi0RosError as error:
        return Row(f'picture {name}', FAIL, str(error), "set the driver's encoding, or override")
    label = getattr(message, 'encoding', None) or message.format
    height, width = rgb.shape[:2]
    mean = ', '.join(f'{v:.0f}' for v in rgb.reshape(-1, 3).mean(axis=0))
    row = f'{width}x{height} {label}, mean RGB {mean}'
    if rgb.std() < 1.0:
        return Row(f'picture {name}', WARN, row, 'one flat colour: lens cap, or a dead camera?')
    return Row(f'picture {name}', PASS, row)


def _named_positions(survey, robot: RobotSpec) -> dict[str, float]:
    values = {}
    for topic, prefix in robot.joint_state_sources:
        heard = next((h for t, h in survey.joints.items() if t == topic), None)
        if heard is None or heard.last is None:
            continue
        for name, position in zip(heard.last.name, heard.last.position):
            values[robot.resolve_joint(prefix, name)] = position
    return values


def _joint_row(survey, robot: RobotSpec) -> Row:
    values = _named_positions(survey, robot)
    missing = [name for name in robot.state_names if name not in values]
    if missing:
        nameless = [t for t, h in survey.joints.items() if h.last is not None and not h.last.name]
        if nameless:
            return Row('joint names', FAIL, f'{", ".join(nameless)} sends no names',
                       'the driver must fill JointState.name')  # fmt: skip
        heard = ', '.join(sorted(values)) or 'none'
        return Row('joint names', FAIL, f'not heard: {", ".join(missing)}',
                   f'heard {heard}; mend names or prefix in the YAML')  # fmt: skip
    measured = np.array([values[name] for name in robot.state_names])
    if not np.isfinite(measured).all():
        return Row('joint positions', FAIL, 'not a number', 'reboot the motor that is named')
    try:
        robot.measured_to_policy(measured)
    except Pi0RosError as error:
        return Row('gripper', FAIL, str(error), 'unit or calibration of the gripper')
    command = robot.measured_to_command(measured)
    out = [
        f'{joint.name} at {value:.3f} (limits {joint.lower:g}..{joint.upper:g})'
        for joint, value in zip(robot.joints, command)
        if not joint.continuous and not joint.lower - 0.02 <= value <= joint.upper + 0.02
    ]
    if out:
        return Row('joint positions', WARN, '; '.join(out), 'move the arm inside of its limits')
    return Row('joint names', PASS, f'all {robot.dof}, left before right as in the YAML')


def _alignment_row(survey, robot, max_age, max_skew) -> Row:
    from pi0_ros.messages import ns_from_time

    buffer = ObservationBuffer(robot, max_age, max_skew)
    newest = 0
    for name, heard in survey.cameras.items():
        if heard.last is not None:
            stamp = ns_from_time(heard.last.header.stamp)
            newest = max(newest, stamp)
            encoding = robot.cameras[name].encoding
            buffer.add_image(name, stamp, lambda m=heard.last, e=encoding: decode_image(m, e))
    for topic, prefix in robot.joint_state_sources:
        message = survey.joints[topic].last
        if message is not None:
            names = [robot.resolve_joint(prefix, name) for name in message.name]
            stamp = ns_from_time(message.header.stamp)
            newest = max(newest, stamp)
            buffer.add_joints(stamp, names, message.position)
    observation, problems = buffer.latest(newest)
    if observation is None:
        return Row('alignment', FAIL, '; '.join(f'{n}: {t}' for n, t in problems.items()),
                   'see the rows above')  # fmt: skip
    skew = max(observation.image_stamps_ns.values()) - min(observation.image_stamps_ns.values())
    return Row('alignment', PASS, f'pictures within {skew / 1e6:.0f} ms of each other')


def system_rows(survey, robot: RobotSpec) -> list[Row]:
    """Return the rows on controllers, rival publishers, clocks, QoS and the safety filter."""
    return [
        *_controller_rows(survey, robot), *_publisher_rows(survey), *_clock_rows(survey),
        *_qos_rows(survey), _filter_row(survey),
    ]  # fmt: skip


REMEDY = {
    'interbotix': 'start the driver (interbotix_xsarm_control runs xs_sdk in that namespace)',
    'forward_command': 'load and activate it; `ros2 control list_controllers` shows whether',
    'joint_trajectory': 'load and activate it; `ros2 control list_controllers` shows whether',
}


def _controller_rows(survey, robot: RobotSpec) -> list[Row]:
    from pi0_ros.nodes.probe import output_topics

    rows = []
    simulated = [n for n in survey.ends['joint_command'].subscribers if n.endswith('/sim_robot')]
    for topic, (kind, wanted) in output_topics(robot).items():
        ends, what = survey.ends[topic], f'controller {topic}'
        other = [t for t in ends.types if t != wanted]
        if other:
            rows.append(Row(what, FAIL, f'it carries {", ".join(other)}, not {wanted}',
                            "mend 'output' in the robot's YAML: kind or topic"))  # fmt: skip
        elif ends.subscribers:
            rows.append(Row(what, PASS, f'heard by {", ".join(ends.subscribers)}'))
        elif simulated:
            rows.append(Row(what, PASS, f'simulated by {simulated[0]}'))
        else:
            rows.append(Row(what, WARN, 'nobody listens: the arm would not move', REMEDY[kind]))
        strangers = [n for n in ends.publishers if n.rsplit('/', 1)[-1] != 'safety_filter']
        if strangers:
            rows.append(Row(f'commands {topic}', FAIL, f'published by {", ".join(strangers)}',
                            'only safety_filter may command the arm; stop the other'))  # fmt: skip
    return rows


def _publisher_rows(survey) -> list[Row]:
    rows = []
    for topic in ('joint_command_raw', 'joint_command', 'action_chunk', '/clock'):
        names = survey.ends[topic].publishers
        if len(names) > 1:
            rows.append(Row(f'publishers {topic}', FAIL, f'{len(names)}: {", ".join(names)}',
                            'two sources fight; stop all but one'))  # fmt: skip
    return rows


def _clock_rows(survey) -> list[Row]:
    following = [name for name, simulated in survey.sim_time.items() if simulated]
    others = [name for name, simulated in survey.sim_time.items() if not simulated]
    if following and others:
        return [Row('time', FAIL, f'{", ".join(following)} follow /clock, {", ".join(others)} not',
                    'give all nodes the same use_sim_time')]  # fmt: skip
    if survey.clock_ns is None:
        if following:
            return [Row('time', FAIL, f'{", ".join(following)} wait for /clock, which is silent',
                        'start the simulation, or set use_sim_time to false')]  # fmt: skip
        return []
    heard = [h for h in (*survey.cameras.values(), *survey.joints.values()) if h.sim_offset]
    simulated = [h.topic for h in heard if abs(h.sim_offset) < abs(h.offset)]
    real = [h.topic for h in heard if h.topic not in simulated]
    if simulated and real:
        return [Row('time', FAIL, f'{", ".join(simulated)} stamped by /clock, '
                    f'{", ".join(real)} by the system clock',
                    'give all drivers the same use_sim_time')]  # fmt: skip
    if others and simulated:
        return [Row('time', FAIL, f'inputs are stamped by /clock, {", ".join(others)} use the '
                    'system clock', 'set use_sim_time to true for them')]  # fmt: skip
    if following and real:
        return [Row('time', FAIL, f'{", ".join(following)} follow /clock, inputs are stamped by '
                    'the system clock', 'set use_sim_time to true for the drivers')]  # fmt: skip
    return [Row('time', PASS, '/clock is published; stamps agree')]


def _qos_rows(survey) -> list[Row]:
    return [
        Row(f'QoS {ends.topic}', FAIL, '; '.join(ends.incompatible[:3]),
            'let the publisher offer what the subscriber asks for (reliable, transient local)')
        for ends in survey.ends.values() if ends.incompatible
    ]  # fmt: skip


def _filter_row(survey) -> Row:
    status = survey.filter
    if status is None:
        return Row('safety filter', WARN, 'not heard: no status', 'start safety_filter')
    values = {v.key: v.value for v in status.values}
    state = values.get('state', '')
    remedy = {
        'stopped': 'clear the cause, then call ~/reset and ~/enable',
        'holding': 'it says why; call ~/enable to go on',
        'waiting': 'it waits for a steady measured pose; see the rows on joints',
    }
    verdict = FAIL if state == 'stopped' else WARN if state in remedy else PASS
    return Row('safety filter', verdict, status.message or state, remedy.get(state, ''))


def checkpoint_rows(checkpoint: str, robot: RobotSpec, options: dict, prompt: str) -> list[Row]:
    """Return the rows on the checkpoint, a dry inference included."""
    from pi0_ros.policy import Pi0Policy
    from pi0_ros.policy.make_checkpoint import start_state

    try:
        policy = Pi0Policy.from_pretrained(checkpoint, robot=robot, **options)
    except Pi0RosError as error:
        return [Row('checkpoint', FAIL, str(error), 'pi0_ros inspect says more')]
    info = policy.info
    what = f'{info.layout} {info.kind}, {policy.chunk_size} rows a chunk'
    rows = [Row('checkpoint', PASS, what)]
    rows.append(Row('normalisation', PASS, info.statistics_source or 'none (identity)'))
    rows.append(Row('ALOHA adaptation', PASS, policy.aloha_constants))
    absent = [name for name in policy.cameras if name not in robot.cameras]
    masked = f'not on this robot, masked: {", ".join(absent)}' if absent else ''
    rows.append(Row('cameras', WARN if absent else PASS, ', '.join(policy.cameras), masked))
    if prompt:
        count = len(policy.tokenizer(prompt, np.zeros(robot.dof) if info.kind == 'pi05' else None))
        full = count >= policy.tokenizer.length
        rows.append(Row('prompt', WARN if full else PASS,
                        f'{count} of {policy.tokenizer.length} tokens',
                        'cut off at the end: shorten it' if full else ''))  # fmt: skip
    rows.append(_memory_row(policy))
    size = policy.config.vision.image
    images = {name: np.zeros((size, size, 3), np.uint8) for name in policy.cameras}
    state = start_state(robot)
    try:
        policy.predict(Observation(images, state, prompt or 'pick up the cube'))
        started = time.monotonic()
        chunk = policy.predict(Observation(images, state, prompt or 'pick up the cube'))
        took = time.monotonic() - started
    except Pi0RosError as error:
        return [*rows, Row('dry inference', FAIL, str(error), '')]
    lasts = policy.chunk_size / robot.policy_rate
    slow = took > 0.5 * lasts
    rows.append(Row('dry inference', WARN if slow else PASS,
                    f'{chunk.shape[0]} x {chunk.shape[1]} in {1e3 * took:.0f} ms',
                    f'a chunk lasts {lasts:.1f} s only' if slow else ''))  # fmt: skip
    return rows


def _memory_row(policy) -> Row:
    import torch

    used = sum(p.numel() * p.element_size() for p in policy.model.parameters()) / 2**30
    if not torch.cuda.is_available():
        return Row('memory', PASS, f'weights {used:.2f} GiB, on the CPU')
    free, total = (v / 2**30 for v in torch.cuda.mem_get_info())
    verdict = PASS if free > 0.5 else WARN
    return Row('memory', verdict, f'weights {used:.2f} GiB; {free:.1f} of {total:.1f} GiB free',
               '' if verdict == PASS else 'close other programs on the GPU')  # fmt: skip


def print_rows(rows: list[Row]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title='pi0_ros check', show_lines=False)
    for column in ('check', 'verdict', 'found', 'remedy'):
        table.add_column(column, overflow='fold')
    style = {PASS: 'green', WARN: 'yellow', FAIL: 'bold red'}
    for row in rows:
        table.add_row(row.what, f'[{style[row.verdict]}]{row.verdict}[/]', row.found, row.remedy)
    Console().print(table)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--robot', default='aloha', help='robot name or YAML file')
    parser.add_argument('--checkpoint', default=None, help='folder or hub id; without: robot only')
    parser.add_argument('--prompt', default='', help='instruction whose length is checked')
    parser.add_argument('--device', default='cpu', help='torch device for the dry inference')
    parser.add_argument('--dtype', default='float32', choices=('float32', 'bfloat16'))
    parser.add_argument('--action-space', default=None, choices=('absolute', 'delta'))
    parser.add_argument('--aloha', default=None, choices=('openpi', 'lerobot_old', 'off'))
    parser.add_argument('--seconds', type=float, default=3.0, help='how long to listen')
    parser.add_argument('--max-age', type=float, default=0.2)
    parser.add_argument('--max-skew', type=float, default=0.05)
    parser.add_argument('--offline', action='store_true', help='check the checkpoint only')


def run(args: argparse.Namespace) -> int:
    robot = RobotSpec.load(args.robot)
    rows = []
    if not args.offline:
        from pi0_ros.nodes.probe import survey

        heard = survey(robot, args.seconds)
        rows += robot_rows(heard, robot, args.max_age, args.max_skew)
        rows += system_rows(heard, robot)
    if args.checkpoint:
        options = {'device': args.device, 'dtype': args.dtype, 'action_space': args.action_space,
                   'aloha': args.aloha}  # fmt: skip
        rows += checkpoint_rows(args.checkpoint, robot, options, args.prompt)
    if not rows:
        raise Pi0RosError('nothing to check; give --checkpoint, or leave --offline out')
    print_rows(rows)
    failed = [row.what for row in rows if row.verdict == FAIL]
    warned = sum(row.verdict == WARN for row in rows)
    remark = f', {warned} {"warning" if warned == 1 else "warnings"}' if warned else ''
    print(f'not fit to run: {", ".join(failed)}' if failed else f'fit to run{remark}')
    return 1 if failed else 0
