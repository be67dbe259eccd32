#!/usr/bin/env python3
"""Draws docs/life.svg, the life of one lock: docs/life.py > docs/life.svg

The picture has a white background of its own, so that it is readable on any page. Its text is text.
"""

from html import escape

WIDTH, HEIGHT = 860, 360
TITLE = (
    "The life of a lock: an acquire is granted at once, or waits in the queue until the lock is passed on. "
    "The lease is renewed while the body runs. The lock is released when the body ends, or lost."
)

# Name, left, top, width, height, fill, border, the lines of text. The first line is bold.
BOXES = [
    ("acquire", 20, 60, 170, 74, "#eef2f7", "#51698a", ["acquire", "SET NX and a fencing", "token: one round trip"]),
    ("waiting", 20, 220, 170, 74, "#fdf3dc", "#a87a14", ["waiting", "a queue on the server,", "first come, first served"]),
    ("held", 345, 60, 200, 74, "#e3f4e6", "#2f7d3f", ["held", "the body runs,", "and only under its lease"]),
    ("released", 700, 60, 140, 74, "#eef2f7", "#51698a", ["released", "also by ?, a panic,", "a dropped future"]),
    ("lost", 345, 220, 200, 74, "#fbe5e3", "#b03a2e", ["lost", "the body is dropped,", "the caller gets Lost"]),
    ("busy", 240, 312, 92, 32, "#fbe5e3", "#b03a2e", ["Busy"]),
    ("next", 604, 220, 236, 90, "#fdf3dc", "#a87a14", ["the next waiter", "is granted the lock by the script", "that releases it; in one process", "without a message"]),
]

# The points of a line, and the text beside it: left, top, anchor, lines. A line of waiters and errors is dashed.
ARROWS = [
    ([(190, 97), (345, 97)], (268, 88, "middle", ["free"]), False),
    ([(75, 134), (75, 220)], (84, 181, "start", ["busy"]), False),
    ([(190, 257), (265, 257), (265, 120), (345, 120)], (274, 181, "start", ["grant: one", "message"]), False),
    ([(545, 97), (700, 97)], (622, 88, "middle", ["the body ends"]), False),
    ([(445, 134), (445, 220)], (454, 173, "start", ["no renewal for a ttl,", "or the key was deleted"]), False),
    ([(405, 60), (405, 28), (485, 28), (485, 60)], (495, 32, "start", ["renewed each third of the ttl, by a thread of its own"]), False),
    ([(130, 294), (130, 328), (240, 328)], (139, 321, "start", ["wait is over"]), True),
    ([(770, 134), (770, 220)], None, True),
]


def text(left, top, lines, anchor="start", bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return "".join(
        f'<text x="{left}" y="{top + 16 * index}" text-anchor="{anchor}"{weight}>{escape(line)}</text>\n'
        for index, line in enumerate(lines)
    )


def box(_name, left, top, width, height, fill, border, lines):
    middle = left + width / 2
    first = top + height / 2 + 4.5 - 9 * (len(lines) - 1)
    shape = f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{border}" stroke-width="1.5"/>\n'
    heading = f'<text x="{middle:g}" y="{first:g}" text-anchor="middle" font-weight="bold" font-size="15">{escape(lines[0])}</text>\n'
    return shape + heading + text(f"{middle:g}", first + 19, lines[1:], "middle")


def arrow(points, label, is_dashed):
    path = " ".join(f"{left},{top}" for left, top in points)
    dashes = ' stroke-dasharray="5 4"' if is_dashed else ""
    line = f'<polyline points="{path}" fill="none" stroke="#333333" stroke-width="1.5"{dashes} marker-end="url(#tip)"/>\n'
    if label is None:
        return line
    left, top, anchor, lines = label
    return line + text(left, top, lines, anchor)


def picture():
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13" fill="#222222">\n',
        f"<title>{escape(TITLE)}</title>\n",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#333333"/></marker></defs>\n',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#ffffff"/>\n',
    ]
    parts += [arrow(*each) for each in ARROWS]
    parts += [box(*each) for each in BOXES]
    return "".join(parts) + "</svg>\n"


if __name__ == "__main__":
    print(picture(), end="")
