"""LightGBM model texts changed by somebody who knows the format, sizes of the trees included."""

import re


def edited(text, name, change, *, tree=0):
    """Return ``text`` with the values of a tree's line ``name=`` as ``change`` makes them of a list of words."""
    head, *blocks = re.split(r"(?=Tree=\d+\n)", text)
    blocks[-1], rest = blocks[-1][: blocks[-1].index("end of trees")], text[text.index("end of trees") :]
    blocks[tree] = re.sub(
        rf"^{name}=(.*)$", lambda found: f"{name}={' '.join(change(found[1].split()))}", blocks[tree], flags=re.M
    )
    return resized(head, blocks, rest)


def resized(head, blocks, rest):
    """Return a text of these trees whose sizes agree."""
    sizes = " ".join(str(len(block)) for block in blocks)
    return re.sub(r"^tree_sizes=.*$", f"tree_sizes={sizes}", head, flags=re.M) + "".join(blocks) + rest


def with_leaves(text, value):
    """Return ``text`` with this value at every leaf of the first tree."""
    return edited(text, "leaf_value", lambda words: [value] * len(words))


def placed(at, word):
    """Return a change that puts ``word`` at a place."""
    return lambda words: [*words[:at], word, *words[at + 1 :]] if at >= 0 else [*words[:at], word]
