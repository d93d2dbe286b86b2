"""Reports for administrators from a cluster's history, in the style of sacct.

Pure functions from frames to rows, and from rows to text. ``sacct_format`` defines a report and how it is written;
``usage``, ``queue``, ``predictions``, ``decisions`` and ``shadow`` each answer one question; ``nightly`` combines the
most important parts of a day.
"""
