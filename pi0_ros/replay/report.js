'use strict';
(() => {
  const source = document.getElementById('data');
  if (!source) return;
  const { frames, joints } = JSON.parse(source.textContent);
  const slider = document.getElementById('slider');
  const moment = document.getElementById('moment');
  const grid = document.getElementById('chunk');
  const plots = joints.map((name, i) => {
    const figure = document.createElement('figure');
    figure.innerHTML = '<svg viewBox="0 0 300 90" role="img"><text x="2" y="12"></text>' +
      '<text x="2" y="72"></text><text x="40" y="86">0 s</text>' +
      '<text x="296" y="86" text-anchor="end"></text><polyline class="sent"/></svg><figcaption></figcaption>';
    figure.querySelector('figcaption').textContent = name;
    grid.append(figure);
    const values = frames.flatMap((frame) => frame.chunk[i]);
    let low = Infinity, high = -Infinity;
    for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
    if (high - low < 1e-3) { low -= 0.01; high += 0.01; }
    return { texts: figure.querySelectorAll('text'), line: figure.querySelector('polyline'), low, high };
  });
  const show = () => {
    const frame = frames[slider.value];
    moment.textContent = `${frame.time.toFixed(2)} s, chunk ${frame.sequence}`;
    for (const image of document.querySelectorAll('img[data-camera]')) {
      image.src = frame.images[image.dataset.camera] || '';
    }
    plots.forEach(({ texts, line, low, high }, i) => {
      const rows = frame.chunk[i];
      line.setAttribute('points', rows.map((v, k) =>
        `${(40 + k / Math.max(rows.length - 1, 1) * 256).toFixed(1)},${(6 + (high - v) / (high - low) * 64).toFixed(1)}`).join(' '));
      texts[0].textContent = high.toFixed(2);
      texts[1].textContent = low.toFixed(2);
      texts[3].textContent = `${(rows.length * frame.dt).toFixed(2)} s`;
    });
  };
  slider.addEventListener('input', show);
  show();
})();
