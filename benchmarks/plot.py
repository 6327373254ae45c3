"""A line of points on a logarithmic x axis as SVG."""

from __future__ import annotations

import math
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 560, 300, 64, 40, 48


def curve(path: Path, title: str, x_label: str, points: list[tuple[int, float]]) -> None:
    """Writes the points (x, nanoseconds) with the y axis from zero."""
    top = _round_up(max(y for _, y in points))
    low, high = math.log10(points[0][0]), math.log10(points[-1][0])
    right, bottom = WIDTH - 24, HEIGHT - BOTTOM

    def at(x: int, y: float) -> tuple[float, float]:
        return LEFT + (math.log10(x) - low) / (high - low) * (right - LEFT), bottom - y / top * (bottom - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" ',
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{title}</text>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{x_label}</text>',
    ]
    for i in range(5):
        y = bottom - i / 4 * (bottom - TOP)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{top * i / 4:,.0f} ns</text>')
    for x, _ in points:
        parts.append(f'<text x="{at(x, 0)[0]}" y="{bottom + 18}" text-anchor="middle">{x:,}</text>')
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in (at(*p) for p in points))
    parts.append(f'<polyline points="{line}" fill="none" stroke="#2563eb" stroke-width="2"/>')
    parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="#2563eb"/>' for a, b in (at(*p) for p in points)]
    path.write_text("\n".join([*parts, "</svg>\n"]))


def _round_up(y: float) -> float:
    step: float = 10 ** math.floor(math.log10(y))
    return math.ceil(y / step) * step
