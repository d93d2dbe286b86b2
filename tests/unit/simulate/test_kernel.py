from types import ModuleType

from helios.simulate.kernel import fingerprint, kernel


def a_module(**members):
    module = ModuleType("made_up")
    vars(module).update(members)
    return module


def plus_one(x):
    return x + 1


def plus_two(x):
    return x + 2


def test_the_fingerprint_changes_with_the_body_of_a_kernel():
    before, after = a_module(step=kernel(plus_one)), a_module(step=kernel(plus_two))
    assert fingerprint(before) != fingerprint(after)


def test_the_fingerprint_changes_with_a_number_that_kernels_name():
    assert fingerprint(a_module(LIMIT=1)) != fingerprint(a_module(LIMIT=2))


def test_the_fingerprint_of_the_same_kernels_stays():
    assert fingerprint(a_module(step=kernel(plus_one))) == fingerprint(a_module(step=kernel(plus_one)))


def test_kernels_are_not_cached_one_by_one():
    # A cached kernel would bring old code of its callees into an entry point that is compiled anew.
    assert not kernel(plus_one).stats.cache_path
