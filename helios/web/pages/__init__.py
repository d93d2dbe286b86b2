"""Content of the pages.

Sections are for a person, plain values for JSON. Nothing is written, and HTTP is left out.
"""
