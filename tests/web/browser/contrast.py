"""The contrast of each text on a page with its background, by the formula of WCAG 2."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

LEAST = 4.5
"""AA, for text of ordinary size."""

# Visits every visible text, and finds its color and the first background behind it that is not transparent.
LOOK = """() => {
  const made = document.createElement("canvas").getContext("2d", { willReadFrequently: true }), kept = new Map();
  const channels = (text) => {
    if (!kept.has(text)) {
      made.clearRect(0, 0, 1, 1); made.fillStyle = text; made.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = made.getImageData(0, 0, 1, 1).data;
      kept.set(text, [r, g, b, a / 255]);
    }
    return [...kept.get(text)];
  };
  const over = (top, below) => [0, 1, 2].map((n) => top[n] * top[3] + below[n] * (1 - top[3])).concat(1);
  const light = ([r, g, b]) => {
    const part = (c) => ((c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const color = channels(getComputedStyle(at).backgroundColor);
      layers.push(color);
      if (color[3] === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const opacity = (element) => {
    let found = 1;
    for (let at = element; at; at = at.parentElement) found *= Number(getComputedStyle(at).opacity);
    return found;
  };
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement, text = node.textContent.trim();
    if (!text || !element.checkVisibility() || element.closest(".sr, .skip, :disabled, option, template")) continue;
    const style = getComputedStyle(element), ground = behind(element);
    const ink = channels(style.color);
    ink[3] *= opacity(element);
    const [a, b] = [light(over(ink, ground)), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const key = `${element.tagName}.${element.className}`;
    const known = found.get(key);
    if (!known || known[2] > ratio) found.set(key, [key, text.slice(0, 30), Math.round(ratio * 100) / 100]);
  }
  return [...found.values()];
}"""


def contrasts(page: Page) -> list[tuple[str, str, float]]:
    """The element, its text and its ratio: the worst of each kind of element."""
    found: list[Any] = page.evaluate(LOOK)
    return [(what, text, ratio) for what, text, ratio in found]
