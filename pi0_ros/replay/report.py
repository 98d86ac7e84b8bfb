# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
What replay found, for people and for machines: text, ``result.json``, ``report.html``.

The HTML is one file without anything from the network: pictures are inlined, plots are SVG, the
slider is a few lines of JavaScript. Readable on a phone and on paper.
"""

from __future__ import annotations

import base64
import html
import io
import json
import math
from pathlib import Path

import numpy as np

VERDICTS = {
    'yes': 'Fit to run: yes',
    'warnings': 'Fit to run: with warnings',
    'no': 'Fit to run: no',
}
PLOT_POINTS = 600
"""Points of a curve in the report; a phone has no more pixels."""


def to_json(summary: dict) -> str:
    """Return strict JSON: numbers that are not finite become null."""
    return json.dumps(_finite(summary), indent=1, allow_nan=False)


def _finite(value):
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def as_text(s: dict) -> str:
    """Return the result for a terminal or a CI log, verdict first."""
    lines = [VERDICTS[s['verdict']], *(f'  - {reason}' for reason in s['reasons']), '']
    lines.append(
        f'{s["bag"]} ({s["duration_s"]:.1f} s) with {s.get("checkpoint", "the policy")} on '
        f'{s["robot"]}: {s["chunks"]} chunks, {s["refused"]} of {s["moments"]} moments without '
        f'observation, {s["times_real_time"]:.1f} x real time'
    )
    lines += [f'note: {note}' for note in s['notes']]
    lines += ['', f'{"input":34} {"messages":>8} {"Hz":>7} {"lost":>5} {"from":>7} {"to":>7}']
    for name, i in s['inputs'].items():
        lines.append(
            f'{name:34} {i["messages"]:8d} {i["rate_hz"]:7.1f} {i["drops"]:5d} '
            f'{_number(i["start_s"])} {_number(i["end_s"])}'
        )
    for kind in ('actions', 'states'):
        for horizon, e in s[f'against_{kind}'].items():
            worst = max(e['joints'].items(), key=lambda item: item[1]['max'])
            lines.append(
                f'against recorded {kind} at row {horizon:>2}: MAE {e["mae"]:.4f}, max '
                f'{e["max"]:.4f} ({worst[0]})'
            )
    m = s['motion']
    lines.append(
        f'steps: inside of chunks p99 {m["step_inside"]["p99"]:.4f}, at {m["seams"]} seams p99 '
        f'{m["step_at_seams"]["p99"]:.4f}, max {m["step_at_seams"]["max"]:.4f}'
    )
    lines.append(f'setpoints limited: {m["limited_ticks"]} of {m["setpoints"]}')
    for hit in m['limits'][:10]:
        lines.append(
            f'  {hit["joint"]} {hit["bound"]}: {hit["ticks"]} ticks, worst {hit["worst"]:.4f} at '
            f'{hit["worst_s"]:.2f} s'
        )
    gate, i = s['start_gate'], s['inference_s']
    if 'first' in gate:
        lines.append(
            f'start gate: {gate["verdict"]}, first target {gate["first"]["distance"]:.4f} from '
            f'the pose ({gate["first"]["joint"]})'
        )
    lines.append(f'inference: p50 {i["p50"]:.3f} s, p99 {i["p99"]:.3f} s')
    lines.append(
        f'alignment: image skew p99 {s["image_skew_s"]["p99"]:.3f} s, age p99 '
        f'{s["age_s"]["p99"]:.3f} s'
    )
    if 'published' in s:
        p = s['published']
        lines.append(
            f'published chunks: {p["equal"]} repeated bit for bit, {p["different"]} different, '
            f'{p["guided"]} with guidance (within {p["guided_apart"]:.4f}), '
            f'{p["not repeatable"]} whose inputs are not in the bag'
        )
    return '\n'.join(lines)


def _number(value) -> str:
    return f'{"-":>7}' if value is None else f'{value:7.2f}'


# --- HTML -----------------------------------------------------------------------------------

DRAWN_CHUNKS = 80
"""Predictions drawn over the recording, evenly spread; more are a blur."""

CHUNK_STEP = 5
"""Every so many rows of a drawn chunk."""


def write_report(result, path: Path) -> None:
    """Write a :class:`ReplayResult` as one self-contained HTML file."""
    s = result.summary
    folder = Path(__file__).parent
    style = (folder / 'report.css').read_text(encoding='utf-8')
    script = (folder / 'report.js').read_text(encoding='utf-8')
    body = '\n'.join(
        [
            _verdict(s), _glance(s), _seen(result), _predictions(result), _rollout(result),
            _limits(s), _gate(s), _errors(s), _inputs(s), _histograms(s), _details(s),
        ]
    )  # fmt: skip
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{VERDICTS[s["verdict"]]}: {html.escape(Path(s["bag"]).name)}</title>'
        f'<style>{style}</style></head><body>\n{body}\n<script>{script}</script></body></html>\n',
        encoding='utf-8',
    )


def _verdict(s: dict) -> str:
    reasons = ''.join(f'<li>{html.escape(r)}</li>' for r in s['reasons'])
    prompts = ', '.join(f'“{html.escape(p)}”' for p in s['prompts'])
    facts = [
        ('bag', html.escape(Path(s['bag']).name)),
        ('checkpoint', html.escape(Path(str(s.get('checkpoint') or '–')).name)),
        ('robot', html.escape(s['robot'])), ('instruction', prompts or '–'),
    ]  # fmt: skip
    rows = ''.join(f'<div><dt>{k}</dt><dd>{v}</dd></div>' for k, v in facts)
    return (
        f'<header class="{s["verdict"]}"><h1>{VERDICTS[s["verdict"]]}</h1>'
        f'{"<ul>" + reasons + "</ul>" if reasons else "<p>Nothing to remark.</p>"}</header>'
        f'<dl class="facts">{rows}</dl>'
    )


def _glance(s: dict) -> str:
    """Return the handful of numbers that a person asks for first."""
    m, gate = s['motion'], s['start_gate']
    share = 100.0 * m['limited_ticks'] / max(m['setpoints'], 1)
    tiles = [
        (f'{s["duration_s"]:.1f} s', 'recorded', ''),
        (f'{s["chunks"]}', f'chunks, {s["refused"]} moments without observation',
         'bad' if s['refused'] else ''),
        (f'{share:.1f} %', 'of setpoints changed by the filter',
         'bad' if m['limited_ticks'] else 'good'),
        (gate['verdict'], 'start gate', {'open': 'good', 'unknown': ''}.get(
            gate['verdict'], 'bad')),
    ]  # fmt: skip
    for kind in ('actions', 'states'):
        table = s[f'against_{kind}']
        row = '25' if '25' in table else next(iter(table), None)
        if row:
            tiles.append((f'{table[row]["mae"]:.3f}', f'mean error from recorded {kind}, '
                          f'row {row}', ''))  # fmt: skip
    if s['mode'] != 'recorded motion':
        p50, p99 = (1e3 * s['inference_s'][q] for q in ('p50', 'p99'))
        tiles.append((f'{p50:.0f} ms', f'an inference; 99 of 100 below {p99:.0f} ms', ''))
    lost = sum(i['drops'] for i in s['inputs'].values())
    tiles.append((str(lost), 'messages lost on the way', 'bad' if lost else 'good'))
    cells = ''.join(
        f'<div class="{css}"><b>{html.escape(value)}</b><span>{html.escape(text)}</span></div>'
        for value, text, css in tiles
    )
    return f'<div class="glance">{cells}</div>'


def _jpeg(image: np.ndarray) -> str:
    from PIL import Image

    sink = io.BytesIO()
    Image.fromarray(image).save(sink, 'JPEG', quality=80)
    return 'data:image/jpeg;base64,' + base64.b64encode(sink.getvalue()).decode('ascii')


def _seen(result) -> str:
    if not result.previews:
        if result.summary['mode'] == 'recorded motion':
            return ''
        return '<section><h2>What the model saw</h2><p>Nothing: no observation.</p></section>'
    chunks = result.commands
    times = np.array([time_s for time_s, _ in chunks])
    frames = []
    for time_s, images in result.previews:
        nearest = int(np.abs(times - time_s).argmin())
        frames.append(
            {
                'time': round(time_s, 3),
                'images': {name: _jpeg(image) for name, image in images.items()},
                'from': round(chunks[nearest][0], 3),
                'chunk': np.round(chunks[nearest][1].T, 4).tolist(),
                'dt': result.chunks[nearest].dt,
                'sequence': result.chunks[nearest].sequence,
            }
        )
    data = json.dumps({'frames': frames}).replace('</', '<\\/')
    first = ''.join(
        f'<figure><img alt="{html.escape(n)}" data-camera="{html.escape(n)}" src="{src}">'
        f'<figcaption>{html.escape(n)}</figcaption></figure>'
        for n, src in frames[0]['images'].items()
    )
    return (
        '<section><h2>What the model saw</h2>'
        f'<div class="frames">{first}</div>{_told(result.summary)}'
        f'<label class="time"><input id="slider" type="range" min="0" max="{len(frames) - 1}" '
        'value="0" aria-label="moment of the recording"> <output id="moment"></output></label>'
        f'<script type="application/json" id="data">{data}</script></section>'
    )


def _told(s: dict) -> str:
    """Return the text and the state as they were given to the model."""
    told = s['model_input']
    if not told:
        text = ' / '.join(s['prompts'])
        return f'<p class="told">Instruction: <code>{html.escape(text)}</code></p>'
    full = len(told['tokens']) >= told['limit']
    outside = [
        f'{name} {value:+.1f}' for name, value in zip(s['joints'], told['state'])
        if abs(value) > 3.0
    ]  # fmt: skip
    remark = f'; far outside of the training data: {", ".join(outside)}' if outside else ''
    text = html.escape(told['text']).replace('\n', '<span class="key">\\n</span>')
    return (
        f'<p class="told">Text, first inference: <code>{text}</code> '
        f'<span class="{"bad" if full else ""}">{len(told["tokens"])} of {told["limit"]} tokens'
        f'{", cut off" if full else ""}</span></p>'
        f'<details><summary>Token ids, normalised state{html.escape(remark)}</summary>'
        f'<p><code>{" ".join(map(str, told["tokens"]))}</code></p>'
        + _table(('joint', 'normalised'), zip(s['joints'], told['state']))
        + '</details>'
    )


def _predictions(result) -> str:
    """Return the small multiples: recording, and predictions as thin lines over it."""
    chunks = result.commands
    if not chunks:
        return ''
    every = -(-len(chunks) // DRAWN_CHUNKS)
    state, command = result.traces['recorded'], result.traces['commanded']
    curves = [(state, 'state'), (command, 'command')]
    curves = [((t, v), css) for (t, v), css in curves if len(t) > 1]
    drawn = []
    for k in range(0, len(chunks), every):
        start, rows = chunks[k]
        picks = np.unique([*range(0, len(rows), CHUNK_STEP), len(rows) - 1])
        drawn.append((start + (picks + 1) * result.chunks[k].dt, rows[picks]))
    plots = []
    for i, name in enumerate(result.summary['joints']):
        own = [((t, v[:, i]), css) for (t, v), css in curves]
        plots.append(_plot(name, own, chunks=[(t, v[:, i]) for t, v in drawn]))
    legend = '<b class="state">measured</b>'
    if len(command[0]) > 1:
        legend += ', <b class="command">recorded command</b>'
    return (
        f'<section><h2>Predictions over the recording</h2><p>{legend}, <b class="chunks">'
        'predictions</b>, <b class="now">the one at the slider</b>; command units (rad, m) over '
        f'seconds of the bag.</p><div id="chunk" class="grid">{"".join(plots)}</div></section>'
    )


def _rollout(result) -> str:
    trace = result.traces['setpoints']
    if len(trace) < 2:
        return ''
    every = max(len(trace) // PLOT_POINTS, 1)
    times = np.array([t for t, _, _, _ in trace[::every]])
    raw = np.array([r for _, r, _, _ in trace[::every]])
    sent = np.array([c for _, _, c, _ in trace[::every]])
    plots = []
    for i, name in enumerate(result.summary['joints']):
        marks = [t for t, _, _, limited in trace if name in limited]
        curves = [((times, raw[:, i]), 'raw'), ((times, sent[:, i]), 'sent')]
        plots.append(_plot(name, curves, marks=marks))
    return (
        '<section><h2>Open-loop rollout</h2><p>Setpoints of the policy (<b class="raw">raw</b>) '
        'and what the safety filter would send (<b class="sent">filtered</b>), command units over '
        f'seconds; red: limited.</p><div class="grid">{"".join(plots)}</div></section>'
    )


WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 220, 118, 36, 6, 18


def _plot(title: str, curves, chunks=(), marks=()) -> str:
    """Return one joint's plot; ``curves``: ((times, values), css class)."""
    every = [*(c for c, _ in curves), *chunks]
    values = np.concatenate([v[np.isfinite(v)] for _, v in every] or [np.zeros(0)])
    times = np.concatenate([t for t, _ in every] or [np.zeros(0)])
    if not len(values):
        values, times = np.zeros(1), np.zeros(1)
    low, high = float(values.min()), float(values.max())
    margin = max(0.05 * (high - low), 0.005)
    low, high = low - margin, high + margin
    begin, span = float(times.min()), max(float(np.ptp(times)), 1e-9)

    def path(curve) -> str:
        t, v = curve
        x = LEFT + (t - begin) / span * (WIDTH - LEFT - 4)
        y = TOP + (high - v) / (high - low) * (HEIGHT - TOP - BOTTOM)
        good = np.isfinite(v)
        points = [f'{a:.1f},{b:.1f}' for a, b in zip(x[good], y[good])]
        return f'M{" L".join(points)}' if points else ''

    shapes = ''
    if chunks:
        shapes += f'<path class="chunks" d="{"".join(path(c) for c in chunks)}"/>'
    for curve, css in curves:
        if len(curve[0]) > PLOT_POINTS:
            step = -(-len(curve[0]) // PLOT_POINTS)
            curve = curve[0][::step], curve[1][::step]
        shapes += f'<path class="{css}" d="{path(curve)}"/>'
    bottom = HEIGHT - BOTTOM
    for x in sorted({round(LEFT + (t - begin) / span * (WIDTH - LEFT - 4)) for t in marks}):
        shapes += f'<line class="hit" x1="{x}" x2="{x}" y1="{bottom - 6}" y2="{bottom}"/>'
    if chunks:
        shapes += f'<line class="cursor" y1="{TOP}" y2="{bottom}"/><polyline class="now"/>'
    scale = f'data-low="{low:.6g}" data-high="{high:.6g}" data-from="{begin:.6g}" '
    return (
        f'<figure><figcaption>{html.escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" {scale}data-span="{span:.6g}"><title>'
        f'{html.escape(title)}</title><path class="axis" d="M{LEFT},{TOP} V{bottom} H{WIDTH}"/>'
        f'<text x="{LEFT - 4}" y="{TOP + 8}" text-anchor="end">{high:.2f}</text>'
        f'<text x="{LEFT - 4}" y="{bottom}" text-anchor="end">{low:.2f}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 5}">{begin:.1f} s</text>'
        f'<text x="{WIDTH - 4}" y="{HEIGHT - 5}" text-anchor="end">{begin + span:.1f} s</text>'
        f'{shapes}</svg></figure>'
    )


def _table(head, rows, css: str = '') -> str:
    rows = list(rows)
    if not rows:
        return '<p>None.</p>'
    cells = ''.join(f'<th>{html.escape(str(h))}</th>' for h in head)
    body = ''.join(
        '<tr>' + ''.join(f'<td>{html.escape(_cell(v))}</td>' for v in row) + '</tr>'
        for row in rows
    )
    return (
        f'<div class="wide"><table class="{css}"><thead><tr>{cells}</tr></thead><tbody>{body}'
        '</tbody></table></div>'
    )


def _cell(value) -> str:
    if value is None:
        return '–'
    return f'{value:.4f}' if isinstance(value, float) else str(value)


def _errors(s: dict) -> str:
    parts = []
    for kind in ('actions', 'states'):
        table = s[f'against_{kind}']
        if not table:
            continue
        units = {'command': ', command units'}.get(s['actions']['unit'] * (kind == 'actions'), '')
        worst = max(e['mae'] for t in table.values() for e in t['joints'].values())
        head = ''.join(f'<th>row {horizon}</th>' for horizon in table)
        body = ''
        for name in ('all', *s['joints']):
            body += f'<tr><td>{html.escape(name)}</td>'
            for e in table.values():
                entry = e if name == 'all' else e['joints'][name]
                shade = 0.0 if name == 'all' else entry['mae'] / max(worst, 1e-9)
                body += (
                    f'<td style="background:rgba(196,127,23,{0.55 * shade:.2f})">'
                    f'{entry["mae"]:.4f}<small>max {entry["max"]:.3f}</small></td>'
                )
            body += '</tr>'
        parts.append(
            f'<h3>From recorded {kind}{units}</h3><div class="wide"><table class="errors"><thead>'
            f'<tr><th>joint</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )
    content = ''.join(parts) or '<p>Nothing recorded to compare with.</p>'
    return (
        '<section><h2>Prediction errors</h2><p>Mean absolute error, and the largest, of row k of '
        f'the chunks.</p><div class="pair">{content}</div></section>'
        if parts else f'<section><h2>Prediction errors</h2>{content}</section>'
    )  # fmt: skip


def _limits(s: dict) -> str:
    m = s['motion']
    rows = [
        (h['joint'], h['bound'], h['ticks'], h['first_s'], h['worst'], h['worst_s'])
        for h in m['limits']
    ]
    jerk = [(n, j['rms'], j['max']) for n, j in m['jerk'].items()]
    return (
        f'<section><h2>Limits that the filter would have touched</h2><p>{m["limited_ticks"]} of '
        f'{m["setpoints"]} setpoints; {m["held"]} held for want of a new chunk.</p>'
        + _table(('joint', 'bound', 'ticks', 'first [s]', 'worst', 'worst at [s]'), rows)
        + f'<h3>Steps</h3><p>Largest joint step between setpoints: inside of chunks p50 '
        f'{m["step_inside"]["p50"]:.4f}, p99 {m["step_inside"]["p99"]:.4f}; at {m["seams"]} seams '
        f'p50 {m["step_at_seams"]["p50"]:.4f}, p99 {m["step_at_seams"]["p99"]:.4f}, max '
        f'{m["step_at_seams"]["max"]:.4f}.</p><details><summary>Jerk a joint</summary>'
        + _table(('joint', 'rms', 'max'), jerk)
        + '</details></section>'
    )


def _gate(s: dict) -> str:
    """Return what the live supervisor would have done with this stream."""
    gate, run = s['start_gate'], s['supervisor']
    if run is None:
        return ''
    took = '' if gate.get('approach_s') is None else f' after {gate["approach_s"]:.2f} s'
    text = {
        'open': f'open: the first target lies within {gate["limit"]:g} of the measured pose',
        'approach': f'slow approach; {gate.get("reason", "")}; '
        + (f'followed at full speed{took}' if took else 'it never caught up'),
        'refused': f'closed: {gate.get("reason", "")}',
    }.get(gate['verdict'], 'unknown')
    if 'first' in gate:
        text += f' (first target {gate["first"]["distance"]:.3f} away, {gate["first"]["joint"]})'
    near = run.get('clearance')
    clearance = (
        f'<p>Smallest clearance {near["smallest"]:.3f} m ({html.escape(near["between"])}) at '
        f'{near["time_s"]:.2f} s; the filter holds below {near["limit"]:g} m.</p>'
        if near else ''
    )  # fmt: skip
    ticks = ', '.join(f'{state} {count}' for state, count in run['ticks'].items())
    events = [(e['time_s'], e['text']) for e in run['events']]
    return (
        f'<section><h2>Start gate and supervisor</h2><p>{html.escape(text)}.</p>{clearance}'
        f'<p>Ticks: {html.escape(ticks)}.</p><details><summary>{len(events)} events</summary>'
        + _table(('at [s]', 'event'), events, 'text')
        + '</details></section>'
    )


def _strip(coverage: dict, end_s: float, rate: float) -> str:
    """Return when messages of an input came: one bar a stretch, red where they are missing."""
    counts, width = coverage['counts'], coverage['bin_s']
    bins = max(round(end_s / width + 0.4999), len(counts), 1)
    full = max(rate * width, 1e-9)
    bar, rects = 240 / bins, ''
    for k in range(bins):
        count = counts[k] if k < len(counts) else 0
        last = k >= bins - 1
        css = 'gone' if not count else 'few' if count < 0.8 * full and not last else 'full'
        rects += (
            f'<rect class="{css}" x="{k * bar:.1f}" y="0" width="{max(bar - 0.4, 0.6):.1f}" '
            'height="14"/>'
        )
    return f'<svg class="strip" viewBox="0 0 240 14" preserveAspectRatio="none">{rects}</svg>'


def _inputs(s: dict) -> str:
    end = max((i['end_s'] or 0.0 for i in s['inputs'].values()), default=0.0)
    cards = ''
    for name, i in s['inputs'].items():
        remarks = [
            f'{i["drops"]} lost' if i['drops'] else '',
            f'longest gap {i["longest_gap_s"]:.2f} s' if i['messages'] > 1 else '',
            f'{i["zero_stamps"]} without stamp' if i['zero_stamps'] else '',
            f'{i["retimed"]} re-timed' if i['retimed'] else '',
            f'went back {i["backwards"]} times' if i['backwards'] else '',
        ]
        span = '' if i['start_s'] is None else f'{i["start_s"]:.2f} to {i["end_s"]:.2f} s, '
        cards += (
            f'<div class="input"><b>{html.escape(name)}</b> <span>{html.escape(i["topic"])}</span>'
            f'{_strip(i["coverage"], end, i["rate_hz"])}<span>{i["messages"]} messages, '
            f'{i["rate_hz"]:.1f} Hz, {span}{", ".join(filter(None, remarks))}</span></div>'
        )
    problems = [
        (p['input'], 'refused' if p['blocked'] else 'remark', p['count'], p['first_s'], p['text'])
        for p in s['problems']
    ]
    notes = ''.join(f'<li>{html.escape(n)}</li>' for n in s['notes'])
    return (
        f'<section><h2>Recording</h2>{cards}<ul>{notes}</ul><h3>Problems of observations</h3>'
        + _table(('input', '', 'times', 'first [s]', 'what'), problems, 'text')
        + '</section>'
    )


def _bars(title: str, h: dict) -> str:
    counts = h['counts']
    if not counts:
        return ''
    used = next((k for k, c in enumerate(counts) if c), 0)
    first = max(used - 1, 0)
    shown = counts[first:]
    group = -(-len(shown) // 60)
    shown = [sum(shown[k : k + group]) for k in range(0, len(shown), group)]
    bar = WIDTH / len(shown)
    rects = ''.join(
        f'<rect class="full" x="{k * bar:.1f}" y="{70 - 60 * c / max(shown):.1f}" '
        f'width="{bar * 0.9:.2f}" height="{60 * c / max(shown):.1f}"/>'
        for k, c in enumerate(shown) if c
    )  # fmt: skip
    begin, end = first * h['bin'] * 1e3, (first + len(shown) * group) * h['bin'] * 1e3
    return (
        f'<figure><figcaption>{title}: p50 {1e3 * h["p50"]:.0f}, p99 {1e3 * h["p99"]:.0f}, '
        f'max {1e3 * h["max"]:.0f} ms</figcaption><svg viewBox="0 0 {WIDTH} 90" role="img">'
        f'<title>{title}</title>{rects}<path class="axis" d="M0,70 H{WIDTH}"/>'
        f'<text x="0" y="84">{begin:.0f} ms</text><text x="{WIDTH}" y="84" text-anchor="end">'
        f'{end:.0f} ms</text></svg></figure>'
    )


def _histograms(s: dict) -> str:
    bars = [
        _bars('age of observations', s['age_s']), _bars('skew of images', s['image_skew_s']),
        _bars('inference', s['inference_s']) if 'counts' in s['inference_s'] else '',
    ]  # fmt: skip
    if not any(bars):
        return ''
    return (
        f'<section><h2>Alignment and latency</h2><div class="grid">{"".join(bars)}</div></section>'
    )


def _details(s: dict) -> str:
    options = ', '.join(f'{k} {v}' for k, v in s['options'].items() if v not in ('', None))
    return (
        f'<footer><p>{html.escape(s["bag"])} with {html.escape(str(s.get("checkpoint", "")))}; '
        f'{html.escape(options)}.</p><p>Digest of all chunks: <code>{s["digest"]}</code></p>'
        '</footer>'
    )
