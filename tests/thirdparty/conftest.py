"""A stranger's package has its own tests; they run where it is installed, see tests/story/test_third_party.py."""

collect_ignore_glob = ["*"]
