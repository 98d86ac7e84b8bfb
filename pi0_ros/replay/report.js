'use strict';
(() => {
  const source = document.getElementById('data');
  if (!source) return;
  const { frames } = JSON.parse(source.textContent);
  const slider = document.getElementById('slider');
  const moment = document.getElementById('moment');
  const plots = [...document.querySelectorAll('#chunk svg')].map((svg) => {
    const [low, high, from, span] = ['low', 'high', 'from', 'span'].map((k) => Number(svg.dataset[k]));
    const { width, height } = svg.viewBox.baseVal;
    return {
      line: svg.querySelector('polyline.now'), cursor: svg.querySelector('line.cursor'),
      x: (t) => 36 + (t - from) / span * (width - 40), y: (v) => 6 + (high - v) / (high - low) * (height - 24),
    };
  });
  const show = () => {
    const frame = frames[slider.value];
    moment.textContent = `${frame.time.toFixed(2)} s, chunk ${frame.sequence}`;
    for (const image of document.querySelectorAll('img[data-camera]')) {
      image.src = frame.images[image.dataset.camera] || '';
    }
    plots.forEach(({ line, cursor, x, y }, i) => {
      line.setAttribute('points', frame.chunk[i].map((v, k) =>
        `${x(frame.from + (k + 1) * frame.dt).toFixed(1)},${y(v).toFixed(1)}`).join(' '));
      for (const side of ['x1', 'x2']) cursor.setAttribute(side, x(frame.from).toFixed(1));
    });
  };
  slider.addEventListener('input', show);
  show();
})();
