"""Mutated files through every reader of Helios: `python -m tests.fuzz TARGET --inputs N --seed S`.

An input may be read or refused with a :class:`helios.errors.HeliosError` that says what to do next. Anything else
(another exception, a dead process, more than 10 s, more than 2 GiB) is a finding: it is kept under ``found/TARGET`` and
replayed by ``test_found.py`` from then on.
"""
