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
        lines.append(f'published chunks: {p["equal"]} repeated, {p["different"]} different')
    return '\n'.join(lines)


def _number(value) -> str:
    return f'{"-":>7}' if value is None else f'{value:7.2f}'


# --- HTML -----------------------------------------------------------------------------------


def write_report(result, path: Path) -> None:
    """Write a :class:`ReplayResult` as one self-contained HTML file."""
    s = result.summary
    folder = Path(__file__).parent
    style = (folder / 'report.css').read_text(encoding='utf-8')
    script = (folder / 'report.js').read_text(encoding='utf-8')
    body = '\n'.join(
        [
            _verdict(s), _slider(result), _rollout(result), _errors(s), _limits(s), _inputs(s),
            _histograms(s), _details(s),
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
        ('bag', html.escape(s['bag'])), ('checkpoint', html.escape(str(s.get('checkpoint', '')))),
        ('robot', html.escape(s['robot'])), ('prompt', prompts),
        ('recorded', f'{s["duration_s"]:.1f} s'), ('chunks', str(s['chunks'])),
        ('inference', '{p50:.3f} s (p50), {p99:.3f} s (p99)'.format(**s['inference_s'])),
        ('start gate', s['start_gate']['verdict']),
    ]  # fmt: skip
    rows = ''.join(f'<div><dt>{k}</dt><dd>{v}</dd></div>' for k, v in facts)
    return (
        f'<header class="{s["verdict"]}"><h1>{VERDICTS[s["verdict"]]}</h1><ul>{reasons}</ul>'
        f'</header><dl>{rows}</dl>'
    )


def _jpeg(image: np.ndarray) -> str:
    from PIL import Image

    sink = io.BytesIO()
    Image.fromarray(image).save(sink, 'JPEG', quality=80)
    return 'data:image/jpeg;base64,' + base64.b64encode(sink.getvalue()).decode('ascii')


def _slider(result) -> str:
    if not result.previews:
        if result.summary['mode'] == 'recorded motion':
            return ''
        return '<section><h2>What the model saw</h2><p>Nothing: no observation.</p></section>'
    base = result.traces['base_ns']
    times = np.array([(c.stamp_ns - base) / 1e9 for c in result.chunks])
    frames = []
    for time_s, images in result.previews:
        nearest = int(np.abs(times - time_s).argmin())
        chunk = result.chunks[nearest]
        frames.append(
            {
                'time': round(time_s, 3),
                'images': {name: _jpeg(image) for name, image in images.items()},
                'chunk': np.round(chunk.actions.T, 4).tolist(),
                'dt': chunk.dt,
                'sequence': chunk.sequence,
            }
        )
    data = json.dumps({'frames': frames, 'joints': result.summary['joints']})
    data = data.replace('</', '<\\/')
    first = ''.join(
        f'<figure><img alt="{html.escape(n)}" data-camera="{html.escape(n)}" src="{src}">'
        f'<figcaption>{html.escape(n)}</figcaption></figure>'
        for n, src in frames[0]['images'].items()
    )
    return (
        '<section><h2>What the model saw, what it predicted</h2>'
        f'<div class="frames">{first}</div>'
        f'<label><input id="slider" type="range" min="0" max="{len(frames) - 1}" value="0" '
        'aria-label="moment of the recording"> <output id="moment"></output></label>'
        '<div id="chunk" class="grid"></div>'
        f'<script type="application/json" id="data">{data}</script></section>'
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
        plots.append(_plot(name, times, [(raw[:, i], 'raw'), (sent[:, i], 'sent')], marks))
    return (
        '<section><h2>Open-loop rollout</h2><p>Setpoints of the policy (<b class="raw">raw</b>) '
        'and what the safety filter would send (<b class="sent">filtered</b>), command units over '
        f'seconds; red ticks: limited.</p><div class="grid">{"".join(plots)}</div></section>'
    )


def _plot(title: str, x: np.ndarray, curves, marks=()) -> str:
    width, height, left, top = 300, 120, 40, 6
    low = min(float(np.nanmin(y)) for y, _ in curves)
    high = max(float(np.nanmax(y)) for y, _ in curves)
    if high - low < 1e-3:
        low, high = low - 0.01, high + 0.01
    span = max(float(x[-1] - x[0]), 1e-9)

    def at(t, y):
        return (
            left + (t - x[0]) / span * (width - left - 4),
            top + (high - y) / (high - low) * (height - top - 20),
        )

    paths = ''
    for y, css in curves:
        points = ' '.join('{:.1f},{:.1f}'.format(*at(t, v)) for t, v in zip(x, y))
        paths += f'<polyline class="{css}" points="{points}"/>'
    for px in sorted({round(at(t, low)[0]) for t in marks}):
        paths += f'<line class="hit" x1="{px}" x2="{px}" y1="{height - 26}" y2="{height - 20}"/>'
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img"><title>{html.escape(title)}'
        f'</title><text x="2" y="{top + 8}">{high:.2f}</text><text x="2" y="{height - 22}">'
        f'{low:.2f}</text><text x="{left}" y="{height - 6}">{x[0]:.1f} s</text>'
        f'<text x="{width - 4}" y="{height - 6}" text-anchor="end">{x[-1]:.1f} s</text>{paths}'
        f'</svg><figcaption>{html.escape(title)}</figcaption></figure>'
    )


def _table(head, rows) -> str:
    if not rows:
        return '<p>None.</p>'
    cells = ''.join(f'<th>{html.escape(str(h))}</th>' for h in head)
    body = ''.join(
        '<tr>' + ''.join(f'<td>{html.escape(_cell(v))}</td>' for v in row) + '</tr>'
        for row in rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>'
        '</div>'
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
        head = ['joint']
        for horizon in table:
            head += [f'MAE row {horizon}', f'max row {horizon}']
        rows = []
        for name in ('all', *s['joints']):
            row = [name]
            for e in table.values():
                entry = e if name == 'all' else e['joints'][name]
                row += [entry['mae'], entry['max']]
            rows.append(row)
        parts.append(f'<h3>Against recorded {kind}</h3>{_table(head, rows)}')
    content = ''.join(parts) or '<p>Nothing recorded to compare with.</p>'
    return f'<section><h2>Prediction errors</h2>{content}</section>'


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


def _inputs(s: dict) -> str:
    rows = [
        (
            n, i['topic'], i['messages'], i['rate_hz'], i['drops'], i['start_s'], i['end_s'],
            i['longest_gap_s'], i['zero_stamps'], i['retimed'], i['backwards'],
        )
        for n, i in s['inputs'].items()
    ]  # fmt: skip
    problems = [
        (p['input'], 'refused' if p['blocked'] else 'remark', p['count'], p['first_s'], p['text'])
        for p in s['problems']
    ]
    notes = ''.join(f'<li>{html.escape(n)}</li>' for n in s['notes'])
    return (
        '<section><h2>Recording</h2>'
        + _table(
            (
                'input', 'topic', 'messages', 'Hz', 'lost', 'from [s]', 'to [s]',
                'longest gap [s]', 'zero stamps', 're-timed', 'went back',
            ), rows,
        )
        + f'<ul>{notes}</ul><h3>Problems of observations</h3>'
        + _table(('input', '', 'times', 'first [s]', 'what'), problems)
        + '</section>'
    )  # fmt: skip


def _bars(title: str, h: dict) -> str:
    counts = h['counts']
    if not counts:
        return ''
    width, height = 300, 90
    bar = width / len(counts)
    rects = ''.join(
        f'<rect x="{k * bar:.1f}" y="{70 - 60 * c / max(counts):.1f}" width="{bar * 0.9:.2f}" '
        f'height="{60 * c / max(counts):.1f}"/>'
        for k, c in enumerate(counts)
    )
    end = len(counts) * h['bin'] * 1e3
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img"><title>{title}</title>{rects}'
        f'<text x="0" y="84">0 ms</text><text x="{width}" y="84" text-anchor="end">{end:.0f} ms'
        f'</text></svg><figcaption>{title}: p50 {1e3 * h["p50"]:.0f}, p99 {1e3 * h["p99"]:.0f}, '
        f'max {1e3 * h["max"]:.0f} ms</figcaption></figure>'
    )


def _histograms(s: dict) -> str:
    return (
        '<section><h2>Alignment</h2><div class="grid">'
        + _bars('age of observations', s['age_s'])
        + _bars('skew of images', s['image_skew_s'])
        + '</div></section>'
    )


def _details(s: dict) -> str:
    options = ', '.join(f'{k} {v}' for k, v in s['options'].items())
    return (
        f'<footer><p>Options: {html.escape(options)}.</p><p>Digest of all chunks: '
        f'<code>{s["digest"]}</code></p></footer>'
    )
